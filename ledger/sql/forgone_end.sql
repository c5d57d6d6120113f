DELETE FROM outbox
WHERE kind = 'forgo' AND product_id = %s AND partition_id = %s AND peer = %s
