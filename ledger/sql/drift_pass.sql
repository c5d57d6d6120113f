UPDATE shard_drift SET
    is_open = NULL,
    state = 'passed'
WHERE product_id = %s AND is_open = 1
