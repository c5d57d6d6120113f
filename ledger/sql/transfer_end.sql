DELETE ended
FROM (
    {rows}
) AS known
STRAIGHT_JOIN outbox AS ended FORCE INDEX (once) USING (kind, product_id, partition_id, peer, transfer)
