-- @include product_row
FORCE INDEX (PRIMARY)
WHERE product_id IN ({values})
ORDER BY product_id
FOR UPDATE
