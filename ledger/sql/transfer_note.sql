INSERT INTO shard_transfer (partition_id, product_id, peer, is_out, epoch, units, arrived) VALUES
{rows}
ON DUPLICATE KEY UPDATE
    units = CASE
        WHEN VALUES(epoch) > epoch THEN VALUES(units)
        WHEN VALUES(epoch) = epoch THEN GREATEST(units, VALUES(units))
        ELSE units
    END,
    arrived = CASE
        WHEN VALUES(epoch) > epoch THEN VALUES(arrived)
        WHEN VALUES(epoch) = epoch THEN GREATEST(arrived, VALUES(arrived))
        ELSE arrived
    END,
    epoch = GREATEST(epoch, VALUES(epoch))
