SELECT COUNT(*)
FROM layout_change
WHERE product_id = %s
    AND cause <> 'operator'
    AND state <> 'rolled_back'
    AND create_time > CURRENT_TIMESTAMP(3) - INTERVAL %s SECOND
