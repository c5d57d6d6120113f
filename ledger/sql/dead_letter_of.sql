SELECT id FROM dead_letter WHERE product_id = %s AND state = 'open' ORDER BY id LIMIT 1
