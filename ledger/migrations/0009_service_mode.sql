-- Modes that all processes agree on, changed by compare-and-set on epoch.
CREATE TABLE IF NOT EXISTS service_mode (
    name        VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode        VARCHAR(32)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch       BIGINT       NOT NULL DEFAULT 0,
    remark      VARCHAR(200) NOT NULL DEFAULT '',
    update_time DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
