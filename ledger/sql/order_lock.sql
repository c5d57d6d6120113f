-- @include order_row
FORCE INDEX (PRIMARY)
WHERE order_id IN ({values})
ORDER BY order_id
FOR UPDATE
