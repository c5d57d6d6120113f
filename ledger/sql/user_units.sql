SELECT user_id, units
FROM user_units
WHERE product_id = %s AND epoch = %s AND user_id IN ({values})
