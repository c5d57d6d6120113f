DELETE FROM outbox WHERE id = %s AND epoch = %s AND transfer = %s
