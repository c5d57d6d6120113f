UPDATE partition_lease SET worker = '' WHERE worker = %s
