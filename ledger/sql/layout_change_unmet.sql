SELECT product.product_id
FROM layout_change AS layout
JOIN product_inventory AS product USING (product_id)
LEFT JOIN layout_change AS later
    ON later.product_id = layout.product_id AND later.version > layout.version
WHERE layout.state = 'rolled_back'
    AND layout.cause = 'operator'
    AND layout.update_time < CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
    AND later.version IS NULL
    AND product.status = 'open'
    AND product.max_per_user = 0
    AND product.shards NOT IN (0, product.layout_shards)
ORDER BY layout.update_time
LIMIT %s
