INSERT INTO partition_lease (partition_id) VALUES
{rows}
ON DUPLICATE KEY UPDATE partition_id = partition_lease.partition_id
