-- @include product_row
WHERE product_id > %s
ORDER BY product_id
LIMIT %s
