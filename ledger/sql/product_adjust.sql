UPDATE product_inventory SET
    total_stock = total_stock + %s,
    available_stock = available_stock + %s,
    version = version + 1
WHERE product_id = %s
