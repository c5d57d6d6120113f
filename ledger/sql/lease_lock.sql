SELECT partitions FROM cluster WHERE id = 1 FOR UPDATE
