#!lua flags=allow-oom
-- Say what this partition remembers of orders; those that it does not know, bar from coming here.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] records_0  hash: request records, first generation; KEYS[3], KEYS[4] the others
-- KEYS[5] tombstones_0  hash: tombstones, first generation; KEYS[6], KEYS[7] the others
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] bars             1: leave a tombstone where nothing is known; 0: only look
-- ARGV[4] tombstone_cap    integer, tombstones that one generation may hold
-- ARGV[5] orders           packed list of order ids
--
-- Returns one of
--   {"done", generation, number, records}  one an order, as in include/orders.lua; n: it was barred, by this
--       call or before; empty: nothing is known
--   {"full", generation, number}           too many tombstones
--   {"fenced", why}
--   {"corrupt", what}
-- @include head
-- @include records

local memory = { KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local bars, tombstone_cap, orders = ARGV[3] == "1", ARGV[4], cmsgpack.unpack(ARGV[5])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local fields = {}
for i, order_id in ipairs(orders) do fields[i] = "order " .. order_id end
local found
found, refusal = find_records(head, memory, fields)
if not found then return refusal end
local records, tombstones = {}, {}
for i, field in ipairs(fields) do
  if bars and not found[i] then
    tombstones[#tombstones + 1] = field
    tombstones[#tombstones + 1] = "n"
  end
  records[i] = found[i] or (bars and "n" or "")
end
local answer = { "done", head.generation, head.number, records }
if not bars then return answer end
if #tombstones > 0 and is_full(current_tombstones(head, memory), #tombstones / 2, tombstone_cap) then
  return { "full", head.generation, head.number }
end

-- From here on it must succeed.
touch(head)
if #tombstones > 0 then redis.call("HSET", current_tombstones(head, memory), unpack(tombstones)) end
return answer
