SELECT generation, number, fields
FROM raw_event FORCE INDEX (PRIMARY)
WHERE partition_id = %s AND (generation > %s OR generation = %s AND number > %s)
ORDER BY generation, number
LIMIT %s
