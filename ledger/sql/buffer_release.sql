UPDATE product_inventory SET
    buffer_stock = buffer_stock - %s,
    available_stock = available_stock + %s,
    released_stock = released_stock + %s,
    version = version + 1
WHERE product_id = %s
