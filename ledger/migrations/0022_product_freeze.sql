-- The last decision to stop or to resume a product's sale: why and by whom it is frozen, '' while it is not;
-- freeze_version grows with each decision, 0: there was none.
ALTER TABLE product_inventory
    ADD COLUMN frozen_reason  VARCHAR(200) NOT NULL DEFAULT '' AFTER former_shards,
    ADD COLUMN frozen_by      VARCHAR(64)  NOT NULL DEFAULT '' AFTER frozen_reason,
    ADD COLUMN freeze_version BIGINT       NOT NULL DEFAULT 0  AFTER frozen_by,
    ADD KEY by_freeze (freeze_version)
