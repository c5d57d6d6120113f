SELECT product_id
FROM product_inventory
WHERE product_id > %s AND status = 'open'
ORDER BY product_id
LIMIT %s
