-- @include order_row
WHERE order_id IN ({values})
