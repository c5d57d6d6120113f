SELECT
    product.product_id,
    product.epoch,
    product.layout_shards,
    EXISTS (
        SELECT 1
        FROM layout_change AS decided
        WHERE decided.product_id = product.product_id AND (
-- @include is_resharded
        )
    )
FROM product_inventory AS product
WHERE product.status IN ('loading', 'open', 'closing') AND NOT EXISTS (
    SELECT 1
    FROM shard_stock AS shard
    WHERE shard.product_id = product.product_id
        AND shard.partition_id = %s
        AND shard.epoch = product.epoch
)
