-- Orders, where MySQL is all there is. state barred: released before it came, so it will hold nothing; it has
-- no lines. order_lines: <product>:<quantity>:<place>, by product, with commas between them; place is - or, of
-- a line that was short, an exclamation mark. deadline_time includes the grace for late confirmations.
CREATE TABLE IF NOT EXISTS inventory_order (
    order_id      BIGINT        NOT NULL,
    user_id       BIGINT        NOT NULL DEFAULT 0,
    state         VARCHAR(16)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    order_lines   VARCHAR(2000) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    deadline_time DATETIME(3)   NOT NULL,
    create_time   DATETIME(3)   NOT NULL,
    update_time   DATETIME(3)   NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (order_id),
    KEY by_deadline (state, deadline_time),
    CONSTRAINT inventory_order_state_known CHECK (
        state IN ('held', 'confirmed', 'released', 'expired', 'refused', 'retaken', 'refund_required', 'barred')
    )
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
