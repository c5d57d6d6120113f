-- The last applied entry of each partition's stream, and what it is recognised by besides its id.
CREATE TABLE IF NOT EXISTS stream_checkpoint (
    partition_id SMALLINT    NOT NULL,
    generation   BIGINT UNSIGNED NOT NULL DEFAULT 0,
    number       BIGINT UNSIGNED NOT NULL DEFAULT 0,
    anchor       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    update_time  DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (partition_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
