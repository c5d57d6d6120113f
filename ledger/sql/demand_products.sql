SELECT product.product_id, product.shards, product.layout_shards, product.max_per_user > 0
FROM product_inventory AS product
WHERE product.status = 'open'
    AND (
        product.update_time > CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
        OR (product.shards = 0 AND product.layout_shards > %s)
        OR product.product_id IN (
            SELECT product_id
            FROM product_demand
            WHERE update_time > CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
        )
    )
    AND NOT EXISTS (
        SELECT 1
        FROM layout_change AS layout
        WHERE layout.product_id = product.product_id
            AND (
                (layout.state <> 'rolled_back' AND layout.version > product.layout_version)
                OR (
                    layout.state = 'rolled_back'
                    AND layout.update_time > CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
                )
            )
    )
ORDER BY product.update_time DESC
LIMIT %s
