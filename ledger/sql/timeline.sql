SELECT
    entry.id,
    entry.product_id,
    entry.kind,
    entry.request_id,
    entry.order_id,
    entry.user_id,
    entry.quantity,
    entry.partition_id,
    entry.event_generation,
    entry.event_number,
    entry.remark,
    entry.actor,
    entry.available_after,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', entry.create_time) DIV 1000
FROM (
    SELECT id
    FROM inventory_log FORCE INDEX ({index})
    WHERE {filters} AND id < %s
    ORDER BY id DESC
    LIMIT %s
) AS page
STRAIGHT_JOIN inventory_log AS entry USING (id)
ORDER BY entry.id DESC
