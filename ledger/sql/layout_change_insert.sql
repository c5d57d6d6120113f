INSERT INTO layout_change (product_id, version, shards, cause)
VALUES (%s, %s, %s, %s)
