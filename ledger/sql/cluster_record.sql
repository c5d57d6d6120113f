INSERT INTO cluster (id, partitions) VALUES (1, %s)
ON DUPLICATE KEY UPDATE id = cluster.id
