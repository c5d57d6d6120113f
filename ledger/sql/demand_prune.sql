DELETE FROM product_demand
WHERE update_time < CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
ORDER BY update_time
LIMIT %s
