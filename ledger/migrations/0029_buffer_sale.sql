-- Requests that were sold from the buffer and that the live stock has not been told of. A row goes when it has.
CREATE TABLE IF NOT EXISTS buffer_sale (
    id          BIGINT      NOT NULL AUTO_INCREMENT,
    product_id  BIGINT      NOT NULL,
    request_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    quantity    BIGINT      NOT NULL,
    user_id     BIGINT      NOT NULL,
    mode_epoch  BIGINT      NOT NULL,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    UNIQUE KEY once (product_id, request_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
