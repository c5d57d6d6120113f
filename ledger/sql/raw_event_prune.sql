DELETE FROM raw_event
WHERE create_time < CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
    AND partition_id IN ({values})
ORDER BY create_time
LIMIT %s
