INSERT INTO inventory_log (
    product_id,
    request_id,
    kind,
    type,
    quantity,
    partition_id,
    event_generation,
    event_number,
    remark,
    actor,
    available_after
)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
