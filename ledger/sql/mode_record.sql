INSERT INTO service_mode (name, mode) VALUES (%s, %s)
ON DUPLICATE KEY UPDATE name = service_mode.name
