-- Numbers of the last transfers between two shards, as far as their streams have been applied, so that none is used
-- again by a shard that is restored. One row at each of the two: is_out 1 at the one that gives, with the units
-- that have not arrived as far as it knows. moved: units of all its transfers in that epoch; where one of the two
-- has lost its last ones, the other's say how many units they were.
CREATE TABLE IF NOT EXISTS shard_transfer (
    partition_id SMALLINT NOT NULL,
    product_id   BIGINT   NOT NULL,
    peer         SMALLINT NOT NULL,
    is_out       BOOLEAN  NOT NULL,
    number       BIGINT   NOT NULL,
    open_units   BIGINT   NOT NULL DEFAULT 0,
    epoch        BIGINT   NOT NULL DEFAULT 0,
    moved        BIGINT   NOT NULL DEFAULT 0,
    PRIMARY KEY (partition_id, product_id, peer, is_out),
    KEY by_peer (peer)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
