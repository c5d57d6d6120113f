#!lua
-- Say what became of a request here; where nothing did, decide that nothing ever will.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
-- KEYS[4] records_0  hash: request records, first generation; KEYS[5], KEYS[6] the others
-- KEYS[7] tombstones_0  hash: tombstones, first generation; KEYS[8], KEYS[9] the others
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that the caller knows of
-- ARGV[5] layout           integer >= 1, the layout that the caller routed by
-- ARGV[6] tombstone_cap    integer, tombstones that one generation may hold
-- ARGV[7] request_id       the request
-- ARGV[8] tombstone        n: it never came; b: it is barred here; empty: only look
--
-- Returns one of
--   {"done", generation, number, status, quantity}  status is one of
--       R units were taken, quantity says how many; X refused for good; N never, by this call or before;
--       B barred; M it was a call of another kind; S nothing is known and nothing was decided: the
--       layout or the epoch is another one, or this was only a look; O too many tombstones
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include records

local stock_key, events_key = KEYS[2], KEYS[3]
local memory = { KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
local product, epoch, layout, tombstone_cap = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local request_id, tombstone = ARGV[7], ARGV[8]
local KNOWN = { d = "R", h = "R", c = "R", f = "R", i = "X", n = "N", b = "B" }
local DECIDED = { n = "N", b = "B" }

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local field = product .. ":" .. request_id
local found
found, refusal = find_records(head, memory, { field })
if not found then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
local function came_to(status, quantity)
  return { "done", head.generation, head.number, status, quantity or 0 }
end

local known = found[1]
local is_upgrade = known == "b" and tombstone == "n"
if known and not is_upgrade then
  touch(head)
  return came_to(KNOWN[string.sub(known, 1, 1)] or "M", tonumber(string.match(known, "^[dhcfi](%d+):")))
end
if tombstone == "" then return came_to(known and "B" or "S") end
if stock.epoch ~= epoch or stock.layout ~= layout or not stock.serves then return came_to("S") end
if is_full(current_tombstones(head, memory), 1, tombstone_cap) then return came_to("O") end

refusal = append(events_key, head, shard_event("tombstone", product, stock, "request", request_id,
  "tombstone", tombstone))
if refusal then return refusal end
-- From here on it must succeed.
redis.call("HSET", current_tombstones(head, memory), field, tombstone)
return came_to(DECIDED[tombstone])
