SELECT COUNT(*)
FROM outbox FORCE INDEX (by_due)
WHERE kind = %s
    AND state = 'open'
    AND create_time <= CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
    AND partition_id IN ({values})
