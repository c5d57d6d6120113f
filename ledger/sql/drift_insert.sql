INSERT INTO shard_drift (
    product_id,
    partition_id,
    epoch,
    available,
    held,
    sold,
    loaded,
    damaged,
    first_generation,
    first_number,
    last_generation,
    last_number
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
