DELETE FROM service_mode
WHERE name LIKE 'server %' AND update_time < CURRENT_TIMESTAMP(3) - INTERVAL 1 HOUR
