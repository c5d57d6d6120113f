UPDATE partition_lease
SET worker = %s, expire_time = CURRENT_TIMESTAMP(3) + INTERVAL %s MICROSECOND
WHERE worker = '' OR expire_time <= CURRENT_TIMESTAMP(3)
ORDER BY partition_id
LIMIT %s
