-- @include hold_row
WHERE id > %s
ORDER BY id
LIMIT %s
