INSERT INTO inventory_log (
    product_id,
    request_id,
    kind,
    type,
    order_id,
    user_id,
    quantity,
    remark
)
VALUES (%s, %s, %s, %s, %s, %s, 0, %s)
ON DUPLICATE KEY UPDATE id = inventory_log.id
