SELECT product_id, MIN(id)
FROM dead_letter FORCE INDEX (by_event)
WHERE partition_id = %s
    AND product_id > 0
    AND state = 'open'
    AND shard_followed = 0
GROUP BY product_id
ORDER BY product_id
