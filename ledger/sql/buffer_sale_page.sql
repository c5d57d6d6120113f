SELECT
    sale.id,
    sale.product_id,
    sale.request_id,
    sale.quantity,
    sale.user_id,
    product.layout_version,
    product.layout_shards
FROM buffer_sale AS sale
JOIN product_inventory AS product USING (product_id)
WHERE sale.id > %s
ORDER BY sale.id
LIMIT %s
