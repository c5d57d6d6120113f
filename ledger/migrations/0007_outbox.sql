-- Work on the live stock that the ledger decided on and that must happen once, whoever does it.
CREATE TABLE IF NOT EXISTS outbox (
    id           BIGINT       NOT NULL AUTO_INCREMENT,
    kind         VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    product_id   BIGINT       NOT NULL,
    partition_id SMALLINT     NULL,
    request_id   VARCHAR(64)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    quantity     BIGINT       NOT NULL DEFAULT 0,
    state        VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'open',
    attempts     INT          NOT NULL DEFAULT 0,
    due_time     DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    remark       VARCHAR(200) NOT NULL DEFAULT '',
    create_time  DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time  DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    UNIQUE KEY once (kind, product_id, request_id),
    KEY by_due (state, due_time)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
