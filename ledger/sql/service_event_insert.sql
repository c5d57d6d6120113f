INSERT INTO service_event (
    id,
    kind,
    product_id,
    order_id,
    user_id,
    available,
    create_time
) VALUES
{rows}
