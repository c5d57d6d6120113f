SELECT product.product_id, product.freeze_version, product.frozen_reason <> ''
FROM product_inventory AS product FORCE INDEX (by_freeze)
STRAIGHT_JOIN shard_stock AS shard USING (product_id)
WHERE product.freeze_version > 0 AND shard.partition_id = %s
ORDER BY product.product_id
