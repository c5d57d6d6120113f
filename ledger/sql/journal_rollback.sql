INSERT INTO inventory_log (
    product_id,
    request_id,
    kind,
    type,
    order_id,
    user_id,
    quantity,
    available_after,
    partition_id,
    event_generation,
    event_number,
    remark,
    actor,
    create_time
)
SELECT
    %s,
    %s,
    %s,
    %s,
    COALESCE(MAX(first.order_id), 0),
    COALESCE(MAX(first.user_id), 0),
    %s,
    %s,
    %s,
    %s,
    %s,
    %s,
    %s,
    '1970-01-01' + INTERVAL %s * 1000 MICROSECOND
FROM inventory_log AS first
WHERE first.product_id = %s AND first.request_id = %s AND first.kind = 'deduct'
ON DUPLICATE KEY UPDATE
    quantity = inventory_log.quantity + VALUES(quantity),
    available_after = NULL,
    remark = LEFT(CONCAT(VALUES(remark), '; ', inventory_log.remark), %s)
