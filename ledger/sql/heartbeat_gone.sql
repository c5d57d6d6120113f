DELETE FROM service_mode WHERE name = %s
