SELECT product.product_id, product.layout_shards
FROM product_inventory AS product
WHERE product.status IN ('loading', 'open') AND (
    SELECT COUNT(*)
    FROM shard_stock AS shard
    WHERE shard.product_id = product.product_id AND shard.epoch = product.epoch
) < product.layout_shards
