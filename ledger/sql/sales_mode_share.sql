SELECT mode, epoch FROM service_mode WHERE name = 'sales' LOCK IN SHARE MODE
