-- Units that a user holds and has bought of a product with a limit per user, where MySQL is all there is. They
-- count from the load on that raised the product's epoch to this one.
CREATE TABLE IF NOT EXISTS user_units (
    product_id BIGINT NOT NULL,
    user_id    BIGINT NOT NULL,
    epoch      BIGINT NOT NULL,
    units      BIGINT NOT NULL,
    PRIMARY KEY (product_id, user_id),
    CONSTRAINT user_units_not_negative CHECK (units >= 0)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
