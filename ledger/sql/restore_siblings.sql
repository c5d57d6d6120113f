SELECT product_id, partition_id, epoch, sold FROM shard_stock WHERE product_id IN ({values})
