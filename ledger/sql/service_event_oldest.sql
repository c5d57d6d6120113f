SELECT MIN(id) FROM service_event
