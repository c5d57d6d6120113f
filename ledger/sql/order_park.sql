UPDATE inventory_order SET
    deadline_time = CURRENT_TIMESTAMP(3) + INTERVAL %s SECOND
WHERE order_id = %s AND state = 'held'
