SELECT
    product_id,
    name,
    status,
    total_stock,
    available_stock,
    pre_deduct_stock,
    buffer_stock,
    sold_count,
    buffer_percent,
    max_per_user,
    low_stock,
    shards,
    layout_version,
    layout_shards,
    epoch,
    load_pool,
    sold_before,
    version
FROM product_inventory
WHERE product_id = %s
FOR UPDATE
