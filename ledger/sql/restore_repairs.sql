SELECT product_id, MAX(id)
FROM shard_drift
WHERE partition_id = %s AND state = 'repaired'
GROUP BY product_id
