SELECT partition_id, generation, number
FROM stream_checkpoint FORCE INDEX (PRIMARY)
WHERE partition_id IN ({values})
ORDER BY partition_id
FOR UPDATE
