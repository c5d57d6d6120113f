INSERT INTO product_demand (product_id, server, requests_per_s, update_time)
VALUES {values}
ON DUPLICATE KEY UPDATE
    requests_per_s = VALUES(requests_per_s),
    update_time = VALUES(update_time)
