SELECT mode FROM service_mode WHERE name = %s
