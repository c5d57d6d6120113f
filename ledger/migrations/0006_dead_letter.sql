-- Entries, or single requests of an entry, that could not be applied. reason starts with one word for
-- its class. request_id is empty where the whole entry is meant. fields is packed as in raw_event and
-- cut after 1 MiB.
CREATE TABLE IF NOT EXISTS dead_letter (
    id           BIGINT       NOT NULL AUTO_INCREMENT,
    partition_id SMALLINT     NOT NULL,
    generation   BIGINT UNSIGNED NOT NULL,
    number       BIGINT UNSIGNED NOT NULL,
    product_id   BIGINT       NOT NULL DEFAULT 0,
    request_id   VARCHAR(64)  NOT NULL DEFAULT '',
    reason       VARCHAR(500) NOT NULL,
    fields       MEDIUMBLOB   NOT NULL,
    state        VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'open',
    remark       VARCHAR(200) NOT NULL DEFAULT '',
    create_time  DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time  DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (id),
    KEY by_event (partition_id, generation, number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
