UPDATE outbox SET
    attempts = attempts + 1,
    due_time = CURRENT_TIMESTAMP(3) + INTERVAL %s MICROSECOND,
    remark = %s
WHERE id = %s AND state = 'open' AND epoch = %s AND transfer = %s
