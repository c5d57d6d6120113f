INSERT INTO shard_transfer (partition_id, product_id, peer, is_out, number, open_units, epoch, moved) VALUES
{rows}
ON DUPLICATE KEY UPDATE
    open_units = IF(VALUES(number) >= number, VALUES(open_units), open_units),
    number = GREATEST(number, VALUES(number)),
    moved = IF(VALUES(epoch) > epoch, 0, moved) + IF(VALUES(epoch) < epoch, 0, VALUES(moved)),
    epoch = GREATEST(epoch, VALUES(epoch))
