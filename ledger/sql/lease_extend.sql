UPDATE partition_lease
SET expire_time = CURRENT_TIMESTAMP(3) + INTERVAL %s MICROSECOND
WHERE worker = %s AND expire_time > CURRENT_TIMESTAMP(3)
