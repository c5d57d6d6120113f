SELECT
    id,
    product_id,
    partition_id,
    order_id,
    user_id,
    quantity,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', create_time) DIV 1000,
    TIMESTAMPDIFF(MICROSECOND, create_time, CURRENT_TIMESTAMP(3)) DIV 1000
FROM hold
