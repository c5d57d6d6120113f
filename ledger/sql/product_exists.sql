SELECT product_id FROM product_inventory WHERE product_id IN ({values})
