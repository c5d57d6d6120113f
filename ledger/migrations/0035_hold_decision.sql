-- The order's record at its coordinator, of its first line; empty at the others. An order can be held for longer than
-- entries are kept.
ALTER TABLE hold
    ADD COLUMN decision VARCHAR(3000) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' AFTER quantity
