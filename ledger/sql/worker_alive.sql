INSERT INTO worker (name, expire_time)
VALUES (%s, CURRENT_TIMESTAMP(3) + INTERVAL %s MICROSECOND)
ON DUPLICATE KEY UPDATE expire_time = VALUES(expire_time)
