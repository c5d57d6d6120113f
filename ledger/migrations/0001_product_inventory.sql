-- One row per product. The shards' live units are part of available_stock. Each stream is applied at its
-- own pace: units may be sold or removed at one shard before the stream of another tells that they came
-- in, so available_stock and total_stock can be below zero for a while. Held and sold units never move.
CREATE TABLE IF NOT EXISTS product_inventory (
    product_id       BIGINT       NOT NULL,
    name             VARCHAR(200) NOT NULL DEFAULT '',
    status           VARCHAR(16)  CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'closed',
    total_stock      BIGINT       NOT NULL DEFAULT 0,
    available_stock  BIGINT       NOT NULL DEFAULT 0,
    pre_deduct_stock BIGINT       NOT NULL DEFAULT 0,
    buffer_stock     BIGINT       NOT NULL DEFAULT 0,
    sold_count       BIGINT       NOT NULL DEFAULT 0,
    buffer_percent   TINYINT      NOT NULL DEFAULT 5,
    max_per_user     BIGINT       NOT NULL DEFAULT 0,
    low_stock        BIGINT       NOT NULL DEFAULT 0,
    shards           INT          NOT NULL DEFAULT 0,
    layout_version   BIGINT       NOT NULL DEFAULT 0,
    layout_shards    INT          NOT NULL DEFAULT 0,
    epoch            BIGINT       NOT NULL DEFAULT 0,
    load_pool        BIGINT       NOT NULL DEFAULT 0,
    sold_before      BIGINT       NOT NULL DEFAULT 0,
    former_shards    VARCHAR(255) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    version          BIGINT       NOT NULL DEFAULT 0,
    create_time      DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    update_time      DATETIME(3)  NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
    PRIMARY KEY (product_id),
    CONSTRAINT product_id_positive CHECK (product_id > 0),
    CONSTRAINT product_status_known CHECK (status IN ('closed', 'loading', 'open', 'closing')),
    CONSTRAINT product_held_not_negative CHECK (pre_deduct_stock >= 0),
    CONSTRAINT product_buffer_not_negative CHECK (buffer_stock >= 0),
    CONSTRAINT product_sold_not_negative CHECK (sold_count >= 0),
    CONSTRAINT product_conserves_units CHECK (
        total_stock = available_stock + pre_deduct_stock + buffer_stock + sold_count
    ),
    CONSTRAINT product_buffer_percent_in_range CHECK (buffer_percent BETWEEN 0 AND 100)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
