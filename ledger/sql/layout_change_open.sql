SELECT
    layout.product_id,
    layout.version,
    layout.shards,
    layout.cause,
    layout.state,
    product.status,
    product.layout_version >= layout.version AND product.layout_version <> layout.version + 1
FROM layout_change AS layout
JOIN product_inventory AS product USING (product_id)
WHERE layout.state IN ('wanted', 'active')
ORDER BY layout.update_time
LIMIT %s
