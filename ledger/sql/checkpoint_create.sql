INSERT INTO stream_checkpoint (partition_id) VALUES
{rows}
ON DUPLICATE KEY UPDATE partition_id = stream_checkpoint.partition_id
