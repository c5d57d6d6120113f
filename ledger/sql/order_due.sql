SELECT order_id, TIMESTAMPDIFF(MICROSECOND, deadline_time, CURRENT_TIMESTAMP(3)) DIV 1000
FROM inventory_order
WHERE state = 'held' AND deadline_time < CURRENT_TIMESTAMP(3)
ORDER BY deadline_time
LIMIT %s
