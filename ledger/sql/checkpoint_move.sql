INSERT INTO stream_checkpoint (partition_id, generation, number, anchor) VALUES
{rows}
ON DUPLICATE KEY UPDATE
    generation = VALUES(generation),
    number = VALUES(number),
    anchor = VALUES(anchor)
