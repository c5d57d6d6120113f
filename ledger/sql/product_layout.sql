UPDATE product_inventory SET
    layout_version = %s,
    layout_shards = %s,
    former_shards = %s,
    version = version + 1
WHERE product_id = %s AND layout_version < %s
