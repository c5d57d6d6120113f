-- Units that orders hold, shard by shard, as far as the streams have been applied: a row lasts as long as
-- its hold. create_time is the live stock's. With orders, the journal has type 9 refund (an order that was
-- confirmed too late and whose units are gone) and 10 force_release (who had an order released, and why);
-- both move no units.
CREATE TABLE IF NOT EXISTS hold (
    id           BIGINT      NOT NULL AUTO_INCREMENT,
    product_id   BIGINT      NOT NULL,
    partition_id SMALLINT    NOT NULL,
    request_id   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    order_id     BIGINT      NOT NULL,
    user_id      BIGINT      NOT NULL,
    quantity     BIGINT      NOT NULL,
    create_time  DATETIME(3) NOT NULL,
    PRIMARY KEY (id),
    UNIQUE KEY once (product_id, request_id, partition_id),
    KEY by_product (product_id, id),
    KEY by_user (user_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
