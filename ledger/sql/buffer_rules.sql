SELECT product_id, epoch, buffer_release_below
FROM product_inventory FORCE INDEX (by_buffer_rule)
WHERE buffer_release_below > 0
    AND status = 'open'
    AND buffer_stock > 0
    AND product_id > %s
ORDER BY product_id
LIMIT %s
