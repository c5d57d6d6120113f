INSERT INTO raw_event (partition_id, generation, number, fields) VALUES
{rows}
ON DUPLICATE KEY UPDATE fields = VALUES(fields)
