-- Shards whose own counts differ from the ledger's at the same event: live less ledger. A shard has one open
-- row at most; is_open is NULL once it agrees again, and state says how that came: repaired, or passed.
-- damaged names live counts that no script has written. first_… is the first event that tells of the
-- difference, last_… the one at which it became what it is; changes counts how often it did.
CREATE TABLE IF NOT EXISTS shard_drift (
    id               BIGINT      NOT NULL AUTO_INCREMENT,
    product_id       BIGINT      NOT NULL,
    partition_id     SMALLINT    NOT NULL,
    epoch            BIGINT      NOT NULL,
    is_open          TINYINT     NULL DEFAULT 1,
    state            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'open',
    available        BIGINT      NOT NULL,
    held             BIGINT      NOT NULL,
    sold             BIGINT      NOT NULL,
    loaded           BIGINT      NOT NULL,
    damaged          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    first_generation BIGINT UNSIGNED NOT NULL,
    first_number     BIGINT UNSIGNED NOT NULL,
    last_generation  BIGINT UNSIGNED NOT NULL,
    last_number      BIGINT UNSIGNED NOT NULL,
    changes          INT         NOT NULL DEFAULT 0,
    create_time      DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time      DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    UNIQUE KEY one_open (is_open, product_id, partition_id),
    KEY by_product (product_id, id),
    CONSTRAINT shard_drift_state_known CHECK (state IN ('open', 'repaired', 'passed'))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
