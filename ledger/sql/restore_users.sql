SELECT user_id, -SUM(quantity)
FROM inventory_log FORCE INDEX (one_effect)
WHERE product_id = %s
    AND partition_id = %s
    AND event_number >= %s
    AND kind IN ('deduct', 'reserve', 'release')
GROUP BY user_id
HAVING SUM(quantity) < 0
