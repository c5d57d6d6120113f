SELECT fields FROM raw_event WHERE partition_id = %s AND generation = %s AND number = %s
