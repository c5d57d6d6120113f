-- actor: who asked for it, where somebody said so. available_after: available units of the shard just after
-- the operation; of the product where it did not come by a stream; NULL: not known.
ALTER TABLE inventory_log
    ADD COLUMN actor           VARCHAR(64) NOT NULL DEFAULT '' AFTER remark,
    ADD COLUMN available_after BIGINT      NULL AFTER actor
