INSERT INTO inventory_log (
    product_id,
    request_id,
    kind,
    type,
    quantity,
    remark,
    actor,
    available_after
) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
