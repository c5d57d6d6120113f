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
-- ARGV[4] anchor           what the entry is recognised by, see sharding/events.py: a node that was set back gives its
--                          numbers out once more
--
-- Returns one of
--   {"done", generation, number, found}  found is 1 or 0
--   {"fenced", why}
--   {"corrupt", what}
-- @include head

local events_key, entry_id, anchor = KEYS[2], ARGV[3], ARGV[4]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local found = redis.pcall("XRANGE", events_key, entry_id, entry_id)
if found.err then return { "corrupt", "events" } end
touch(head)
local entry = found[1]
local is_same = entry and redis.sha1hex(table.concat(entry[2], "\0")) == anchor
return { "done", head.generation, head.number, is_same and 1 or 0 }
