SELECT quantity
FROM inventory_log
WHERE product_id = %s AND request_id = %s AND kind = 'deduct'
