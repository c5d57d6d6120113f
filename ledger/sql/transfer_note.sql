INSERT INTO shard_transfer (partition_id, product_id, peer, is_out, number, open_units, epoch, moved) VALUES
{rows}
ON DUPLICATE KEY UPDATE
    number = VALUES(number),
    open_units = VALUES(open_units),
    moved = IF(epoch = VALUES(epoch), moved, 0) + VALUES(moved),
    epoch = VALUES(epoch)
