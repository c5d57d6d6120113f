SELECT
    id,
    request_id,
    order_id,
    user_id,
    quantity,
    decision,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', create_time) DIV 1000
FROM hold FORCE INDEX (by_product)
WHERE id > %s AND product_id = %s AND partition_id = %s
ORDER BY id
LIMIT %s
