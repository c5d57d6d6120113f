UPDATE product_inventory SET
    status = 'closed',
    available_stock = available_stock + buffer_stock,
    sold_before = sold_count,
    buffer_stock = 0,
    version = version + 1
WHERE product_id = %s
