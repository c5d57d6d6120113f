SELECT COUNT(*)
FROM shard_stock
WHERE product_id = %s AND epoch = %s
