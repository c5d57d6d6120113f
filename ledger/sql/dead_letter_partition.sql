SELECT partition_id FROM dead_letter WHERE id = %s
