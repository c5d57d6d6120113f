-- Which worker serves a partition, and until when by this database's clock; no worker: ''.
CREATE TABLE IF NOT EXISTS partition_lease (
    partition_id SMALLINT    NOT NULL,
    worker       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    expire_time  DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (partition_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
