-- @include layout_change_row
WHERE product_id = %s AND state = 'wanted'
LIMIT 1
