-- @include layout_change_row
WHERE product_id = %s
ORDER BY version DESC
LIMIT 1
