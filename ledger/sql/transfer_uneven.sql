INSERT INTO outbox (kind, product_id, partition_id, request_id, peer, epoch, transfer)
SELECT 'transfer', pair.product_id, pair.donor, CAST(pair.receiver AS CHAR), pair.receiver, pair.epoch, pair.given
FROM (
    SELECT
        note.product_id,
        IF(note.is_out, note.partition_id, note.peer) AS donor,
        IF(note.is_out, note.peer, note.partition_id) AS receiver,
        note.epoch,
        SUM(IF(note.is_out, note.units, 0)) AS given,
        SUM(IF(note.is_out, note.arrived, 0)) AS arrived,
        SUM(IF(note.is_out, 0, note.units)) AS got
    FROM (
        SELECT product_id, partition_id, peer, is_out, epoch, units, arrived
        FROM shard_transfer
        WHERE partition_id = %s
        UNION ALL
        SELECT product_id, partition_id, peer, is_out, epoch, units, arrived
        FROM shard_transfer FORCE INDEX (by_peer)
        WHERE peer = %s
    ) AS note
    GROUP BY note.product_id, donor, receiver, note.epoch
    HAVING given <> got OR given <> arrived
) AS pair
JOIN product_inventory AS product ON product.product_id = pair.product_id AND product.epoch = pair.epoch
WHERE product.status <> 'closed'
ON DUPLICATE KEY UPDATE outbox.kind = outbox.kind
