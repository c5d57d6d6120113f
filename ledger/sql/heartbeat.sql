INSERT INTO service_mode (name, mode, remark, update_time) VALUES (%s, %s, %s, CURRENT_TIMESTAMP(3))
ON DUPLICATE KEY UPDATE
    mode = VALUES(mode),
    update_time = VALUES(update_time)
