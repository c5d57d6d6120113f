SELECT product_id, available_stock, low_stock
FROM product_inventory
WHERE product_id IN ({values})
