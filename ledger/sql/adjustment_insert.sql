INSERT INTO inventory_log (
    product_id,
    request_id,
    kind,
    type,
    quantity,
    available_after,
    remark,
    actor
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
