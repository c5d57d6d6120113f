SELECT
    product.status,
    product.epoch,
    product.total_stock,
    product.available_stock,
    product.pre_deduct_stock,
    product.buffer_stock,
    product.sold_count,
    product.sold_before + product.sold_from_buffer,
    outside.restocked,
    outside.removed,
    live.shards,
    live.available,
    live.held,
    live.in_transit + product.released_stock - live.released,
    live.sold,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', CURRENT_TIMESTAMP(3)) DIV 1000,
-- @include drift_columns
FROM product_inventory AS product
JOIN (
    SELECT
        COALESCE(SUM(IF(kind = 'restock', quantity, 0)), 0) AS restocked,
        COALESCE(SUM(IF(kind = 'remove', -quantity, 0)), 0) AS removed
    FROM inventory_log
    WHERE product_id = %s AND kind IN ('restock', 'remove')
) AS outside
LEFT JOIN (
    SELECT
        product_id,
        epoch,
        COUNT(*) AS shards,
        SUM(available) AS available,
        SUM(held) AS held,
        SUM(in_transit) AS in_transit,
        SUM(released) AS released,
        SUM(sold) AS sold
    FROM shard_stock
    WHERE product_id = %s
    GROUP BY product_id, epoch
) AS live ON live.product_id = product.product_id AND live.epoch = product.epoch
LEFT JOIN shard_drift AS drift
    ON drift.is_open = 1
    AND drift.product_id = product.product_id
WHERE product.product_id = %s
ORDER BY drift.partition_id
