-- One row, made by the first event: the highest id in service_event. A transaction that tells of something
-- holds it until it has committed, or ids would be visible in another order than they were given out.
CREATE TABLE IF NOT EXISTS event_sequence (
    id      TINYINT NOT NULL,
    last_id BIGINT  NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT event_sequence_is_one CHECK (id = 1)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
