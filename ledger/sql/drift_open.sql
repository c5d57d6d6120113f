SELECT
-- @include drift_columns
FROM shard_drift AS drift
WHERE drift.is_open = 1
ORDER BY drift.id
LIMIT %s
