-- A letter is open until somebody retries or discards it. shard_followed: whether shard_stock took over what
-- the event says of the shard's counts all the same; NULL: not known, an earlier version wrote the letter.
ALTER TABLE dead_letter
    ADD COLUMN shard_followed BOOLEAN     NULL AFTER fields,
    ADD COLUMN actor          VARCHAR(64) NOT NULL DEFAULT '' AFTER state
