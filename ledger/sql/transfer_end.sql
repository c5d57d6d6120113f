DELETE ended
FROM (
    {rows}
) AS known
STRAIGHT_JOIN outbox AS ended FORCE INDEX (once)
    ON ended.kind = 'transfer'
    AND ended.product_id = known.product_id
    AND ended.partition_id = known.partition_id
    AND ended.event_generation = 0
    AND ended.event_number = 0
    AND ended.request_id = known.request_id
WHERE ended.epoch < known.epoch OR (ended.epoch = known.epoch AND ended.transfer <= known.transfer)
