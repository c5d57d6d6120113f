INSERT INTO cluster (id, partitions, ledgers, ledger_index) VALUES (1, %s, %s, %s)
ON DUPLICATE KEY UPDATE id = cluster.id
