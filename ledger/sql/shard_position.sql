SELECT epoch, event_generation, event_number
FROM shard_stock
WHERE product_id = %s AND partition_id = %s
