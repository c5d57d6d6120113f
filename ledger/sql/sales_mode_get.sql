SELECT mode, epoch FROM service_mode WHERE name = 'sales'
