SELECT request_id, kind, ABS(quantity), user_id, COALESCE(available_after, 0)
FROM inventory_log
WHERE product_id = %s AND request_id IN ({values})
UNION ALL
SELECT request_id, kind, quantity, user_id, 0
FROM request_tombstone
WHERE product_id = %s AND request_id IN ({values})
