UPDATE product_inventory SET
    buffer_stock = buffer_stock - %s,
    sold_count = sold_count + %s,
    sold_from_buffer = sold_from_buffer + %s,
    version = version + 1
WHERE product_id = %s AND version = %s AND buffer_stock >= %s
