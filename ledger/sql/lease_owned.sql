SELECT partition_id
FROM partition_lease
WHERE worker = %s AND expire_time > CURRENT_TIMESTAMP(3)
ORDER BY partition_id
