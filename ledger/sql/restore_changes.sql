SELECT decided.product_id, decided.version, decided.shards, decided.state
FROM layout_change AS decided
STRAIGHT_JOIN product_inventory AS product USING (product_id)
WHERE decided.product_id IN ({values}) AND decided.version > product.layout_version
ORDER BY decided.version
