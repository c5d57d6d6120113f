INSERT INTO shard_stock (product_id, partition_id, epoch, layout_version, state, serves, began) VALUES
{rows}
ON DUPLICATE KEY UPDATE
    epoch = VALUES(epoch),
    layout_version = VALUES(layout_version),
    state = VALUES(state),
    serves = VALUES(serves),
    available = 0,
    held = 0,
    sold = 0,
    loaded = 0,
    in_transit = 0,
    released = 0,
    began = VALUES(began)
