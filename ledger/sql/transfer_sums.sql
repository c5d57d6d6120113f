SELECT
    pair.product_id,
    pair.donor,
    pair.receiver,
    pair.epoch,
    IF(given.epoch = pair.epoch, given.moved, 0) + (
        SELECT COALESCE(SUM(outbox.quantity), 0)
        FROM outbox
        WHERE outbox.kind = 'forgo'
            AND outbox.product_id = pair.product_id
            AND outbox.partition_id = pair.donor
            AND outbox.peer = pair.receiver
            AND outbox.epoch = pair.epoch
    ),
    IF(arrived.epoch = pair.epoch, arrived.moved, 0) + (
        SELECT COALESCE(SUM(outbox.quantity), 0)
        FROM outbox
        WHERE outbox.kind = 'regain'
            AND outbox.product_id = pair.product_id
            AND outbox.partition_id = pair.receiver
            AND outbox.peer = pair.donor
            AND outbox.epoch = pair.epoch
    ),
    EXISTS (
        SELECT 1
        FROM dead_letter AS letter
        WHERE letter.partition_id IN (pair.donor, pair.receiver)
            AND letter.product_id = pair.product_id
            AND letter.state = 'open'
    )
FROM (
    {rows}
) AS pair
LEFT JOIN shard_transfer AS given
    ON given.partition_id = pair.donor
        AND given.product_id = pair.product_id
        AND given.peer = pair.receiver
        AND given.is_out = 1
LEFT JOIN shard_transfer AS arrived
    ON arrived.partition_id = pair.receiver
        AND arrived.product_id = pair.product_id
        AND arrived.peer = pair.donor
        AND arrived.is_out = 0
