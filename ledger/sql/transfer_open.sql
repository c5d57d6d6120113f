INSERT INTO outbox (
    kind,
    product_id,
    partition_id,
    request_id,
    peer,
    epoch,
    transfer,
    due_time
) VALUES
{rows}
ON DUPLICATE KEY UPDATE
    transfer = CASE
        WHEN VALUES(epoch) > epoch THEN VALUES(transfer)
        WHEN VALUES(epoch) = epoch THEN GREATEST(transfer, VALUES(transfer))
        ELSE transfer
    END,
    epoch = GREATEST(epoch, VALUES(epoch)),
    due_time = VALUES(due_time),
    create_time = CURRENT_TIMESTAMP(3),
    attempts = 0
