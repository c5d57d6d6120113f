-- What callers are told of, for some days. Ids are in the order of the commits.
CREATE TABLE IF NOT EXISTS service_event (
    id          BIGINT      NOT NULL,
    kind        VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    product_id  BIGINT      NOT NULL,
    order_id    BIGINT      NOT NULL DEFAULT 0,
    user_id     BIGINT      NOT NULL DEFAULT 0,
    available   BIGINT      NOT NULL DEFAULT 0,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    KEY by_age (create_time)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
