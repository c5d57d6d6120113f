UPDATE partition_lease
SET worker = ''
WHERE worker = %s AND partition_id IN ({values})
