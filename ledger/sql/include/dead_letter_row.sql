SELECT
    id,
    partition_id,
    generation,
    number,
    product_id,
    request_id,
    reason,
    fields,
    shard_followed,
    state,
    actor,
    remark,
    UNIX_TIMESTAMP(create_time) * 1000
FROM dead_letter
