SELECT remark
FROM service_mode
WHERE name LIKE 'server %%'
    AND mode = 'reaches'
    AND update_time > CURRENT_TIMESTAMP(3) - INTERVAL %s MICROSECOND
LIMIT 1
