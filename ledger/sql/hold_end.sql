DELETE ended
FROM (
    {rows}
) AS known
STRAIGHT_JOIN hold AS ended FORCE INDEX (once) USING (product_id, partition_id, request_id)
