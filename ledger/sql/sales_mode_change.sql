UPDATE service_mode SET mode = %s, epoch = epoch + 1 WHERE name = 'sales'
