UPDATE shard_stock
SET available = available + %s, in_transit = in_transit - %s
WHERE product_id = %s AND partition_id = %s
