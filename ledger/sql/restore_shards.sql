SELECT
    shard.product_id,
    shard.epoch,
    shard.layout_version,
    shard.state,
    shard.serves,
    shard.began,
    shard.available,
    shard.held,
    shard.sold,
    shard.loaded,
    shard.released,
-- @include restored_product
FROM shard_stock AS shard FORCE INDEX (by_partition)
STRAIGHT_JOIN product_inventory AS product USING (product_id)
WHERE shard.partition_id = %s
ORDER BY shard.product_id
