CREATE TABLE IF NOT EXISTS schema_migration (
    version    INT          NOT NULL,
    name       VARCHAR(100) NOT NULL,
    checksum   CHAR(64)     NOT NULL,
    apply_time DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (version)
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin
