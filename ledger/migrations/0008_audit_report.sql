-- What audits found; report is JSON.
CREATE TABLE IF NOT EXISTS audit_report (
    id          BIGINT      NOT NULL AUTO_INCREMENT,
    scope       VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    product_id  BIGINT      NOT NULL DEFAULT 0,
    differences INT         NOT NULL DEFAULT 0,
    report      MEDIUMTEXT  NOT NULL,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    KEY by_product (product_id, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
