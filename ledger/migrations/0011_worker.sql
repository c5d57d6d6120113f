-- Workers that are alive: each says so before expire_time, by this database's clock.
CREATE TABLE IF NOT EXISTS worker (
    name        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    expire_time DATETIME(3) NOT NULL,
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
