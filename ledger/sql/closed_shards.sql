SELECT IF(SUM(state <> 'closed') > 0, 0, COUNT(*))
FROM shard_stock
WHERE product_id = %s AND epoch = %s
