SELECT product_id, peer, is_out, epoch, units, arrived
FROM shard_transfer
WHERE partition_id = %s
