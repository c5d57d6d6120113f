-- Applied entries of the last hour as they stood in the stream: fields is their flat list of names and
-- values, packed with MessagePack. A shard that lost its memory is rebuilt from them.
CREATE TABLE IF NOT EXISTS raw_event (
    partition_id SMALLINT    NOT NULL,
    generation   BIGINT UNSIGNED NOT NULL,
    number       BIGINT UNSIGNED NOT NULL,
    fields       MEDIUMBLOB  NOT NULL,
    create_time  DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (partition_id, generation, number),
    KEY by_age (create_time)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
