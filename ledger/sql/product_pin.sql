UPDATE product_inventory SET
    shards = %s,
    version = version + 1
WHERE product_id = %s
