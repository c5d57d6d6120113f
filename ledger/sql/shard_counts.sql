SELECT product_id, partition_id, available, held, sold, loaded
FROM shard_stock
WHERE (product_id, partition_id) IN ({values})
