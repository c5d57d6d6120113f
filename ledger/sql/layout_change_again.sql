UPDATE layout_change AS decided
STRAIGHT_JOIN product_inventory AS product USING (product_id)
SET decided.state = 'wanted'
WHERE decided.product_id IN ({values})
    AND decided.version > product.layout_version
    AND (
        decided.state IN ('active', 'done')
        OR decided.state = 'rolled_back'
        AND EXISTS (
            SELECT 1
            FROM shard_stock AS shard
            WHERE shard.product_id = decided.product_id AND shard.layout_version >= decided.version
        )
    )
