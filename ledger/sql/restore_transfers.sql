SELECT product_id, peer, is_out, number, open_units, epoch, moved
FROM shard_transfer
WHERE partition_id = %s
