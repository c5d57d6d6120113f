SELECT
    order_id,
    user_id,
    state,
    order_lines,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', deadline_time) DIV 1000,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', create_time) DIV 1000
FROM inventory_order
