-- Units of the buffer that have arrived at the shard since the product was loaded; what product_inventory has
-- in released_stock beyond all of them is on its way.
ALTER TABLE shard_stock
    ADD COLUMN released BIGINT NOT NULL DEFAULT 0 AFTER in_transit
