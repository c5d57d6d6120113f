UPDATE (
    {rows}
) AS added
STRAIGHT_JOIN shard_stock AS shard USING (product_id, partition_id)
SET
    shard.available = shard.available + added.available,
    shard.held = shard.held + added.held,
    shard.sold = shard.sold + added.sold,
    shard.loaded = shard.loaded + added.loaded,
    shard.in_transit = shard.in_transit + added.in_transit,
    shard.released = shard.released + added.released,
    shard.serves = IF(added.serves < 0, shard.serves, added.serves),
    shard.state = IF(added.state = '', shard.state, added.state),
    shard.layout_version = IF(
        added.layout_version = 0,
        shard.layout_version,
        added.layout_version
    ),
    shard.event_generation = IF(
        added.number = 0,
        shard.event_generation,
        added.generation
    ),
    shard.event_number = IF(added.number = 0, shard.event_number, added.number)
