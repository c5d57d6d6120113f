SELECT request_id
FROM inventory_log
WHERE product_id = %s AND kind = %s AND request_id IN ({values})
