INSERT INTO hold (
    product_id,
    partition_id,
    request_id,
    order_id,
    user_id,
    quantity,
    decision,
    create_time
) VALUES
{rows}
ON DUPLICATE KEY UPDATE quantity = hold.quantity + VALUES(quantity)
