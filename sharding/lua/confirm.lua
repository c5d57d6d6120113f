#!lua
-- Say whether an entry is in a stream, and write without a meaning, so that a WAIT behind it covers the
-- entry and all that the node did before.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] events  stream of one ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] entry            "<generation>-<number>"
--
-- Returns one of
--   {"done", generation, number, found}  found is 1 or 0
--   {"fenced", why}
--   {"corrupt", what}
-- @include head

local events_key, entry = KEYS[2], ARGV[3]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local found = redis.pcall("XRANGE", events_key, entry, entry)
if found.err then return { "corrupt", "events" } end
touch(head)
return { "done", head.generation, head.number, #found }
