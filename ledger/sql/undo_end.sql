UPDATE outbox SET
    state = 'done',
    remark = %s
WHERE kind = 'undo'
    AND product_id = %s
    AND partition_id = %s
    AND event_generation = %s
    AND event_number = %s
    AND request_id = %s
