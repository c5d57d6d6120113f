SELECT product_id, partition_id, is_out, number, open_units, epoch, moved
FROM shard_transfer FORCE INDEX (by_peer)
WHERE peer = %s
