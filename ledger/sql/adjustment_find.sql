SELECT kind, quantity
FROM inventory_log
WHERE product_id = %s AND request_id = %s
ORDER BY kind IN ('restock', 'remove') DESC
LIMIT 1
