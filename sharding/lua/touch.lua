#!lua
-- Write without a meaning, so that a WAIT behind it covers all that the node did before.
--
-- KEYS[1] head  hash: the partition's fence
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
--
-- Returns one of
--   {"done", generation, number}
--   {"fenced", why}
--   {"corrupt", what}
-- @include head

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
touch(head)
return { "done", head.generation, head.number }
