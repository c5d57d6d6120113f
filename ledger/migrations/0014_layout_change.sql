-- Changes of a product's shard count while it is on sale. Each may use two versions: its own, and the
-- next one to roll back under. state: wanted, then active or rolled_back; done once the shards that left
-- are empty.
CREATE TABLE IF NOT EXISTS layout_change (
    product_id  BIGINT      NOT NULL,
    version     BIGINT      NOT NULL,
    shards      INT         NOT NULL,
    cause       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    state       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'wanted',
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id, version),
    KEY by_state (state, update_time),
    CONSTRAINT layout_change_shards_positive CHECK (shards > 0),
    CONSTRAINT layout_change_cause_known CHECK (cause IN ('operator', 'hot', 'cold')),
    CONSTRAINT layout_change_state_known CHECK (state IN ('wanted', 'active', 'done', 'rolled_back'))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
