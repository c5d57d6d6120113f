-- @include dead_letter_row
WHERE id > %s AND (%s OR state = 'open')
ORDER BY id
LIMIT %s
