SELECT product_id, freeze_version, frozen_reason <> '', frozen_by
FROM product_inventory
WHERE product_id > %s AND freeze_version > 0 AND status <> 'closed'
ORDER BY product_id
LIMIT %s
