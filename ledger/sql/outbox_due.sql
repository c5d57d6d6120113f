SELECT
    id,
    product_id,
    partition_id,
    epoch,
    event_generation,
    event_number,
    request_id,
    peer,
    transfer,
    quantity,
    attempts
FROM outbox FORCE INDEX (by_due)
WHERE kind = %s
    AND state = 'open'
    AND due_time <= CURRENT_TIMESTAMP(3)
    AND partition_id IN ({values})
ORDER BY due_time
LIMIT %s
