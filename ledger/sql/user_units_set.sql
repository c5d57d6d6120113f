INSERT INTO user_units (product_id, user_id, epoch, units) VALUES
{rows}
ON DUPLICATE KEY UPDATE epoch = VALUES(epoch), units = VALUES(units)
