SELECT product_id, version, shards, cause, state
FROM layout_change
