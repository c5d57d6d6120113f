INSERT INTO request_tombstone (product_id, request_id, kind, quantity, user_id) VALUES
{rows}
