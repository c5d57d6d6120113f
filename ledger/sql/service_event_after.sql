SELECT
    id,
    kind,
    product_id,
    order_id,
    user_id,
    available,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', create_time) DIV 1000
FROM service_event
WHERE id > %s AND id <= %s
    {kinds}
    {products}
ORDER BY id
LIMIT %s
