SELECT
    id,
    partition_id,
    generation,
    number,
    product_id,
    request_id,
    reason,
    fields,
    state,
    UNIX_TIMESTAMP(create_time) * 1000
FROM dead_letter
WHERE id > %s AND state = 'open'
ORDER BY id
LIMIT %s
