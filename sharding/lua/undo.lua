#!lua flags=allow-oom
-- Bring the units of a request's second effect back, once. The record stays: the request did have an
-- effect, elsewhere, and a repeat of it gets that answer.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard that had the second effect
-- KEYS[3] events  stream that the worker drains into the ledger
-- KEYS[4] records_0  hash: request records, first generation; KEYS[5], KEYS[6] the others
-- KEYS[7] tombstones_0  hash: tombstones, first generation; KEYS[8], KEYS[9] the others
-- KEYS[10] users  hash: units that users have of this product, where it has a limit
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that the second effect belongs to
-- ARGV[5] request_id       the request
-- ARGV[6] quantity         integer >= 1, units of the second effect
-- ARGV[7] undone           "<generation>-<number>" of the second effect's event
--
-- Returns one of
--   {"done", generation, number}    the units are back, by this call or before
--   {"passed", generation, number}  the shard is closed or has another epoch: the ledger has them
--   {"busy", generation, number}    fewer units are counted as sold
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include records

local stock_key, events_key = KEYS[2], KEYS[3]
local memory = { KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
local product, epoch, request_id = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local quantity, undone = tonumber(ARGV[6]), ARGV[7]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
-- No request id has a space, so this is nobody's record.
local field = product .. ": " .. undone .. " " .. request_id
local found
found, refusal = find_records(head, memory, { field, product .. ":" .. request_id })
if not found then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
refusal = wrong_type(KEYS[10], "hash", "users")
if refusal then return refusal end
if found[1] then
  touch(head)
  return { "done", head.generation, head.number }
end
if stock.epoch ~= epoch or stock.state == "closed" then
  return { "passed", head.generation, head.number }
end
if stock.sold < quantity then return { "busy", head.generation, head.number } end

stock.available = stock.available + quantity
stock.sold = stock.sold - quantity
stock.moves = stock.moves + 1
refusal = append(events_key, head, shard_event("undo", product, stock, "request", request_id,
  "quantity", int(quantity), "undone", undone))
if refusal then return refusal end
-- From here on it must succeed.
write_counts(stock)
redis.call("HSET", current_tombstones(head, memory), field, "undone")
local user = string.match(found[2] or "", "^d%d+:(%d+):")
if user and stock.max_per_user > 0 then give_back(KEYS[10], user, quantity) end
return { "done", head.generation, head.number }
