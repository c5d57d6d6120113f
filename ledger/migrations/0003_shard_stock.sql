-- What each shard holds as far as its stream has been applied. in_transit is signed: units that left
-- for other shards less those that came; over all shards of an epoch it adds up to what is on its way.
-- loaded is signed, too: a shard may give back more than it was loaded with.
CREATE TABLE IF NOT EXISTS shard_stock (
    product_id       BIGINT      NOT NULL,
    partition_id     SMALLINT    NOT NULL,
    epoch            BIGINT      NOT NULL,
    layout_version   BIGINT      NOT NULL,
    state            VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    available        BIGINT      NOT NULL DEFAULT 0,
    held             BIGINT      NOT NULL DEFAULT 0,
    sold             BIGINT      NOT NULL DEFAULT 0,
    loaded           BIGINT      NOT NULL DEFAULT 0,
    in_transit       BIGINT      NOT NULL DEFAULT 0,
    event_generation BIGINT UNSIGNED NOT NULL DEFAULT 0,
    event_number     BIGINT UNSIGNED NOT NULL DEFAULT 0,
    update_time      DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id, partition_id),
    CONSTRAINT shard_available_not_negative CHECK (available >= 0),
    CONSTRAINT shard_held_not_negative CHECK (held >= 0),
    CONSTRAINT shard_sold_not_negative CHECK (sold >= 0),
    CONSTRAINT shard_conserves_units CHECK (available + held + sold + in_transit = loaded)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
