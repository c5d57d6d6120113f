-- @include layout_change_row
WHERE product_id = %s AND state IN ('active', 'done')
ORDER BY version DESC
LIMIT 1
