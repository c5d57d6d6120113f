INSERT IGNORE INTO service_mode (name, mode) VALUES ('sales', 'redis')
