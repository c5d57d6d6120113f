UPDATE product_inventory SET
    name = %s,
    total_stock = %s,
    available_stock = %s,
    buffer_percent = %s,
    max_per_user = %s,
    low_stock = %s,
    buffer_release_below = %s,
    shards = %s,
    version = version + 1
WHERE product_id = %s
