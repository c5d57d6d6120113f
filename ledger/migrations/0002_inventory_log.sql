-- The journal: one row per operation. type: 1 reserve, 2 confirm, 3 release, 4 rollback, 5 deduct,
-- 6 restock, 7 remove. quantity is negative where units left the available stock. partition_id and the
-- event id say which stream entry told of it; NULL and 0: it did not come by a stream.
CREATE TABLE IF NOT EXISTS inventory_log (
    id               BIGINT       NOT NULL AUTO_INCREMENT,
    product_id       BIGINT       NOT NULL,
    request_id       VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind             VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    type             TINYINT      NOT NULL,
    order_id         BIGINT       NOT NULL DEFAULT 0,
    user_id          BIGINT       NOT NULL DEFAULT 0,
    quantity         BIGINT       NOT NULL,
    partition_id     SMALLINT     NULL,
    event_generation BIGINT UNSIGNED NOT NULL DEFAULT 0,
    event_number     BIGINT UNSIGNED NOT NULL DEFAULT 0,
    remark           VARCHAR(200) NOT NULL DEFAULT '',
    create_time      DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    UNIQUE KEY one_effect (product_id, request_id, kind)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
