SELECT l.opening, c.generation, c.number, c.anchor
FROM partition_lease l
JOIN stream_checkpoint c ON c.partition_id = l.partition_id
WHERE l.partition_id = %s
