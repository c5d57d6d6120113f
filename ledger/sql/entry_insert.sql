INSERT INTO inventory_log (
    product_id,
    request_id,
    kind,
    type,
    order_id,
    user_id,
    quantity,
    remark,
    actor,
    available_after
) VALUES
{rows}
