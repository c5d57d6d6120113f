SELECT
    product_id,
    requests_per_s,
    TIMESTAMPDIFF(MICROSECOND, update_time, CURRENT_TIMESTAMP(3)) / 1000000
FROM product_demand
WHERE update_time > CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
ORDER BY requests_per_s DESC
LIMIT %s
