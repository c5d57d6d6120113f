UPDATE product_inventory SET
    status = 'closed',
    available_stock = available_stock + buffer_stock,
    sold_before = sold_count,
    sold_from_buffer = 0,
    buffer_stock = 0,
    version = version + 1
WHERE product_id = %s
