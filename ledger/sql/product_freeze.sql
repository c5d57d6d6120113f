UPDATE product_inventory SET
    frozen_reason = %s,
    frozen_by = %s,
    freeze_version = freeze_version + 1,
    version = version + 1
WHERE product_id = %s
