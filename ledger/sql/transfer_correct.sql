INSERT INTO shard_transfer (partition_id, product_id, peer, is_out, number, open_units, epoch, moved) VALUES
{rows}
ON DUPLICATE KEY UPDATE
    number = VALUES(number),
    open_units = VALUES(open_units),
    moved = VALUES(moved),
    epoch = VALUES(epoch)
