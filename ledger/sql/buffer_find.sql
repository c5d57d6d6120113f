SELECT kind, quantity
FROM inventory_log
WHERE product_id = %s AND request_id = %s
ORDER BY kind = 'buffer' DESC
LIMIT 1
