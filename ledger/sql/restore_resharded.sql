SELECT DISTINCT decided.product_id
FROM layout_change AS decided
STRAIGHT_JOIN product_inventory AS product USING (product_id)
WHERE decided.product_id IN ({values}) AND (
-- @include is_resharded
)
