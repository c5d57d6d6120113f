DELETE FROM inventory_order
WHERE state = 'barred' AND deadline_time < CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
ORDER BY deadline_time
LIMIT %s
