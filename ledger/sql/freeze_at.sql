SELECT product.product_id, product.freeze_version, product.frozen_reason <> ''
FROM shard_stock AS shard
JOIN product_inventory AS product USING (product_id)
WHERE shard.partition_id = %s AND product.freeze_version > 0
ORDER BY product.product_id
