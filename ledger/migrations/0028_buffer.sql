-- released_stock: units that have left the buffer for the shards since the product was loaded. Below
-- buffer_release_below available units in the shards the buffer is released by itself; 0: never. The journal
-- has type 12 buffer of it: units that left the buffer.
ALTER TABLE product_inventory
    ADD COLUMN buffer_release_below BIGINT NOT NULL DEFAULT 0 AFTER low_stock,
    ADD COLUMN released_stock       BIGINT NOT NULL DEFAULT 0 AFTER buffer_stock,
    ADD CONSTRAINT product_released_not_negative CHECK (released_stock >= 0),
    ADD KEY by_buffer_rule (buffer_release_below)
