-- @include product_row
WHERE product_id IN ({values})
