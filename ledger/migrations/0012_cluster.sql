-- One row: what is fixed for the cluster's life.
CREATE TABLE IF NOT EXISTS cluster (
    id          TINYINT     NOT NULL,
    partitions  INT         NOT NULL,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    CONSTRAINT cluster_is_one CHECK (id = 1)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
