UPDATE shard_drift SET
    available = %s,
    held = %s,
    sold = %s,
    loaded = %s,
    damaged = %s,
    last_generation = %s,
    last_number = %s,
    changes = changes + 1
WHERE id = %s
