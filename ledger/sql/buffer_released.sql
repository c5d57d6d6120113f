SELECT epoch, released_stock
FROM product_inventory
WHERE product_id = %s
