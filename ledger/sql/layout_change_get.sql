-- @include layout_change_row
WHERE product_id = %s AND version = %s
