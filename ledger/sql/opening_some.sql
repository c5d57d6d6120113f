SELECT partition_id, opening FROM partition_lease WHERE partition_id IN ({values})
