-- @include hold_row
FORCE INDEX (by_user)
WHERE id > %s AND product_id = %s AND user_id = %s
ORDER BY id
LIMIT %s
