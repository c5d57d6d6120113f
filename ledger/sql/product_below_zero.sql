SELECT COUNT(*) FROM product_inventory WHERE available_stock < 0
