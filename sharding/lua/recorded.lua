#!lua flags=no-writes
-- Say what this partition remembers under some names.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] records_0  hash: request records, first generation; KEYS[3], KEYS[4] the others
-- KEYS[5] tombstones_0  hash: tombstones, first generation; KEYS[6], KEYS[7] the others
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] fields           packed list of names
--
-- Returns one of
--   {"done", generation, number, records}  one a name; empty: nothing is known
--   {"fenced", why}
--   {"corrupt", what}
-- @include head
-- @include records

local memory = { KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local fields = cmsgpack.unpack(ARGV[3])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local found
found, refusal = find_records(head, memory, fields)
if not found then return refusal end
local records = {}
for i = 1, #fields do records[i] = found[i] or "" end
return { "done", head.generation, head.number, records }
