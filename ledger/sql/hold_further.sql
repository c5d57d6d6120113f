SELECT
    line.id,
    line.partition_id,
    line.product_id,
    line.request_id,
    line.order_id,
    line.user_id,
    line.quantity,
    EXISTS (
        SELECT 1
        FROM hold AS first_line
        WHERE
            first_line.product_id = CAST(SUBSTRING_INDEX(line.request_id, ' ', -1) AS SIGNED)
            AND first_line.request_id = line.request_id
            AND first_line.decision <> ''
    )
FROM hold AS line
WHERE line.id > %s AND line.decision = ''
ORDER BY line.id
LIMIT %s
