INSERT INTO product_inventory (product_id) VALUES (%s)
ON DUPLICATE KEY UPDATE product_id = product_inventory.product_id
