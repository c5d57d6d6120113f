-- @include hold_row
FORCE INDEX (by_product)
WHERE id > %s AND product_id = %s
ORDER BY id
LIMIT %s
