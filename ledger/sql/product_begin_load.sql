UPDATE product_inventory SET
    status = 'loading',
    epoch = epoch + 1,
    layout_version = %s,
    layout_shards = %s,
    available_stock = available_stock - %s,
    buffer_stock = buffer_stock + %s,
    released_stock = 0,
    load_pool = %s,
    former_shards = %s,
    version = version + 1
WHERE product_id = %s
