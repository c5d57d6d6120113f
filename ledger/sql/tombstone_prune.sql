DELETE FROM request_tombstone
WHERE create_time < CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
ORDER BY create_time
LIMIT %s
