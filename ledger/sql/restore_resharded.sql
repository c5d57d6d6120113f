SELECT DISTINCT decided.product_id
FROM layout_change AS decided
STRAIGHT_JOIN product_inventory AS product USING (product_id)
WHERE decided.product_id IN ({values})
    AND decided.version IN (product.layout_version, product.layout_version - 1)
    AND decided.state IN ('active', 'done', 'rolled_back')
