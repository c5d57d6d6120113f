INSERT INTO buffer_sale (product_id, request_id, quantity, user_id, mode_epoch) VALUES
{rows}
