DELETE FROM outbox WHERE id = %s
