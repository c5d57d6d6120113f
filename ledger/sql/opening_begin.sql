UPDATE partition_lease SET opening = GREATEST(opening, %s) + 1 WHERE partition_id = %s
