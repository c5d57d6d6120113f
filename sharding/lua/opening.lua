#!lua flags=no-writes
-- Say whether a partition is open here, under which generation, and whether what happens in it waits for a replica.
--
-- KEYS[1] head  hash: the partition's fence
--
-- Returns one of
--   {"replicated", generation}  a replica has to confirm what is written
--   {"degraded", generation}    the node has no replica, and nobody waits for one
--   {"shut"}                    it is not open here
-- @include head

local values = redis.pcall("HMGET", KEYS[1], "owner", "generation", "degraded", "run")
if values.err or shut_here(values[1], values[4]) ~= "" then return { "shut" } end
local generation = whole(values[2])
if not generation then return { "shut" } end
return { is_degraded(values[3], generation) and "degraded" or "replicated", generation }
