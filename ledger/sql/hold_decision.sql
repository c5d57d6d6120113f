UPDATE (
    {rows}
) AS decided
STRAIGHT_JOIN hold FORCE INDEX (once) USING (product_id, partition_id, request_id)
SET hold.decision = decided.decision
