UPDATE product_inventory SET
    available_stock = available_stock - %s,
    sold_count = sold_count + %s,
    version = version + 1
WHERE product_id = %s AND version = %s AND available_stock >= %s
