UPDATE shard_drift SET
    is_open = NULL,
    state = %s
WHERE id = %s
