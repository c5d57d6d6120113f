-- Requests that take nothing, for good, where MySQL is all there is: kind refused (of a retry, for shortage)
-- or never (ResolveRequest decided it). quantity and user_id: what was refused.
CREATE TABLE IF NOT EXISTS request_tombstone (
    product_id  BIGINT      NOT NULL,
    request_id  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    quantity    BIGINT      NOT NULL DEFAULT 0,
    user_id     BIGINT      NOT NULL DEFAULT 0,
    create_time DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id, request_id),
    KEY by_age (create_time),
    CONSTRAINT request_tombstone_kind_known CHECK (kind IN ('refused', 'never'))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
