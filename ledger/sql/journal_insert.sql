INSERT INTO inventory_log (
    product_id,
    request_id,
    kind,
    type,
    order_id,
    user_id,
    quantity,
    available_after,
    partition_id,
    event_generation,
    event_number,
    remark,
    actor,
    create_time
) VALUES
{rows}
