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
    product.status,
    product.epoch,
    product.layout_version,
    product.layout_shards,
    product.former_shards,
    product.max_per_user,
    product.buffer_stock + product.released_stock + product.sold_from_buffer,
    product.sold_before,
    product.released_stock,
    product.freeze_version,
    product.frozen_reason <> ''
FROM shard_stock AS shard FORCE INDEX (by_partition)
STRAIGHT_JOIN product_inventory AS product USING (product_id)
WHERE shard.partition_id = %s
ORDER BY shard.product_id
