UPDATE layout_change AS decided
STRAIGHT_JOIN product_inventory AS product USING (product_id)
SET decided.state = 'wanted'
WHERE decided.product_id IN ({values})
    AND decided.version > product.layout_version
    AND decided.state IN ('active', 'done', 'rolled_back')
