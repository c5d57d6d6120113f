UPDATE dead_letter
SET state = 'discarded', actor = %s, remark = %s
WHERE partition_id = %s
    AND product_id = %s
    AND state = 'open'
    AND shard_followed = 0
    AND (generation < %s OR (generation = %s AND number < %s))
