SELECT id
FROM dead_letter
WHERE partition_id = %s
    AND product_id = %s
    AND state = 'open'
    AND shard_followed = 0
ORDER BY id
LIMIT 1
