SELECT product_id, -(available_stock + buffer_stock), epoch
FROM product_inventory
WHERE available_stock + buffer_stock < 0 AND status = 'open'
ORDER BY product_id
LIMIT %s
