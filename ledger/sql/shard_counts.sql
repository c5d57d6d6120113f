SELECT
    shard.product_id,
    shard.partition_id,
    shard.available,
    shard.held,
    shard.sold,
    shard.loaded,
    drift.id,
    drift.available,
    drift.held,
    drift.sold,
    drift.loaded,
    drift.damaged
FROM shard_stock AS shard
LEFT JOIN shard_drift AS drift
    ON drift.is_open = 1
    AND drift.product_id = shard.product_id
    AND drift.partition_id = shard.partition_id
WHERE (shard.product_id, shard.partition_id) IN ({values})
