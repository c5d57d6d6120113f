-- How many requests a second each server process is asked for a product: a word of a few seconds.
CREATE TABLE IF NOT EXISTS product_demand (
    product_id     BIGINT      NOT NULL,
    server         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    requests_per_s BIGINT      NOT NULL,
    update_time    DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id, server),
    KEY by_age (update_time)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
