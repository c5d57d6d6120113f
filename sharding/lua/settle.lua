#!lua flags=allow-oom
-- End holds of further lines as their orders' coordinators have decided.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
-- KEYS[4] records_0  hash: request records, first generation; KEYS[5], KEYS[6] the others
-- KEYS[7] tombstones_0  hash: tombstones, first generation; KEYS[8], KEYS[9] the others
-- KEYS[10] users  hash: units that users have of this product
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] lines            packed flat list: request_id, state of its order, quantity, user_id, and so on
--
-- Returns one of
--   {"done", generation, number, statuses}  one byte a line: E ended, by this call or before; M it ended
--       otherwise, or is not the order's; S nothing is known of it here
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include records
-- @include holds

local stock_key, events_key, users_key = KEYS[2], KEYS[3], KEYS[10]
local memory = { KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
local product, lines = ARGV[3], cmsgpack.unpack(ARGV[4])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local count = #lines / 4
local fields = {}
for i = 1, count do fields[i] = product .. ":" .. lines[4 * i - 3] end
local found
found, refusal = find_records(head, memory, fields)
if not found then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
refusal = wrong_type(users_key, "hash", "users")
if refusal then return refusal end

local changes = { records = {}, ends = {}, users = {} }
local statuses, ended = {}, {}
for i = 1, count do
  local request_id, why, quantity, user = lines[4 * i - 3], lines[4 * i - 2], lines[4 * i - 1], lines[4 * i]
  local line = read_line(found[i] or "")
  if not line then
    statuses[i] = "S"
  elseif line.quantity ~= quantity or line.user ~= user then
    statuses[i] = "M"
  elseif line.letter == "h" and not ended[request_id] then
    if not end_hold(stock, changes, product, request_id, line, why) then return { "corrupt", "held" } end
    ended[request_id] = IS_SOLD[why] and "c" or "f"
    statuses[i] = "E"
  else
    local letter = ended[request_id] or line.letter
    statuses[i] = ((letter == "c") == (IS_SOLD[why] or false)) and "E" or "M"
  end
end
if #changes.ends == 0 then
  touch(head)
  return { "done", head.generation, head.number, table.concat(statuses) }
end

refusal = append(events_key, head, shard_event("orders", product, stock, "ends",
  table.concat(changes.ends, ","), "decisions", ""))
if refusal then return refusal end
-- From here on it must succeed.
write_ends(stock, changes, users_key, current_records(head, memory))
return { "done", head.generation, head.number, table.concat(statuses) }
