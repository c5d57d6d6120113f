SELECT COUNT(*)
FROM outbox FORCE INDEX (by_due)
WHERE kind = %s
    AND state = 'open'
    AND attempts >= %s
    AND partition_id IN ({values})
