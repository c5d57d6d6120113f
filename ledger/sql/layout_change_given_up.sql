SELECT version
FROM layout_change
WHERE product_id = %s
    AND shards = %s
    AND state = 'rolled_back'
    AND update_time > CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
ORDER BY version DESC
LIMIT 1
