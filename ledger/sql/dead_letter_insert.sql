INSERT INTO dead_letter (
    partition_id,
    generation,
    number,
    product_id,
    request_id,
    reason,
    fields,
    shard_followed
) VALUES
{rows}
