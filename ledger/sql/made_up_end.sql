DELETE FROM outbox
WHERE kind = %s AND product_id = %s AND partition_id = %s AND peer = %s AND epoch = %s AND transfer <= %s
