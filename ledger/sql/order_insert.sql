INSERT INTO inventory_order (
    order_id,
    user_id,
    state,
    order_lines,
    deadline_time,
    create_time
) VALUES
{rows}
