SELECT available, held, sold, loaded FROM shard_drift WHERE id = %s AND is_open = 1
