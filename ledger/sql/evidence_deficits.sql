SELECT product_id, -(available_stock + buffer_stock)
FROM product_inventory
WHERE available_stock + buffer_stock < 0 AND status = 'open'
LIMIT %s
