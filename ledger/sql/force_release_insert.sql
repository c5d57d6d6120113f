INSERT INTO inventory_log (
    product_id,
    request_id,
    kind,
    type,
    order_id,
    user_id,
    quantity,
    available_after,
    remark,
    actor
)
VALUES (
    %s,
    %s,
    %s,
    %s,
    %s,
    %s,
    0,
    (SELECT available_stock FROM product_inventory WHERE product_id = %s),
    %s,
    %s
)
ON DUPLICATE KEY UPDATE id = inventory_log.id
