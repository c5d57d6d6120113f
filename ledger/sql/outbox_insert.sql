INSERT INTO outbox (
    kind,
    product_id,
    partition_id,
    epoch,
    event_generation,
    event_number,
    request_id,
    peer,
    transfer,
    quantity,
    due_time
) VALUES
{rows}
