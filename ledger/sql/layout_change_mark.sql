UPDATE layout_change
SET state = %s
WHERE product_id = %s AND version = %s AND FIND_IN_SET(state, %s)
