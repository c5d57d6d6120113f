-- Units that were sold from the buffer since the product was loaded. They are part of sold_count, and no shard
-- knows of them.
ALTER TABLE product_inventory
    ADD COLUMN sold_from_buffer BIGINT NOT NULL DEFAULT 0 AFTER sold_before
