UPDATE product_inventory SET
    status = %s,
    version = version + 1
WHERE product_id = %s
