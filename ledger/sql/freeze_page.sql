SELECT product_id, freeze_version, frozen_reason <> '', frozen_by
FROM product_inventory FORCE INDEX (by_freeze)
WHERE freeze_version > 0 AND product_id > %s AND status <> 'closed'
ORDER BY product_id
LIMIT %s
