SELECT product_id, partition_id, is_out, epoch, units, arrived
FROM shard_transfer FORCE INDEX (by_peer)
WHERE peer = %s
