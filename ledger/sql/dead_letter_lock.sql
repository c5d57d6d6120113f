-- @include dead_letter_row
WHERE id = %s
FOR UPDATE
