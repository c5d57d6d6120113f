INSERT INTO inventory_log (
    product_id,
    request_id,
    kind,
    type,
    order_id,
    user_id,
    quantity,
    partition_id,
    event_generation,
    event_number,
    remark,
    create_time
) VALUES
{rows}
