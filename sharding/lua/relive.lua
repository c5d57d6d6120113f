#!lua flags=allow-oom
-- Have a partition that is being restored remember what happened to requests and orders, in its order, each piece
-- once: one that was held up would take back what later pieces say.
--
-- KEYS[1] head       hash: the partition's fence
-- KEYS[2] records_0  hash: request records, first generation; KEYS[3], KEYS[4] the others
-- KEYS[5] tombstones_0  hash: tombstones, first generation; KEYS[6], KEYS[7] the others
-- KEYS[8] deadlines  sorted set: orders by the time at which somebody has to look at them
--
-- ARGV[1] attempt   integer >= 1, the generation that this attempt was issued
-- ARGV[2] piece     integer >= 1, numbers the attempt's calls
-- ARGV[3] memories  packed flat list: what, field, value, at_ms, and so on; what is one of
--     r a record; t a tombstone; h a record where nothing is known
--     e a line's hold ended: value replaces all of its record but what was answered
--     o an order, to be looked at at at_ms, 0: never; p the same where nothing is known
--     s an order's state alone
--
-- Returns one of
--   {"done"}
--   {"passed"}         another attempt has begun, or this one has ended
--   {"corrupt", what}
-- @include head
-- @include records
-- @include orders
-- @include restoring

local memory = { KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local deadlines_key, attempt, piece, memories = KEYS[8], ARGV[1], ARGV[2], cmsgpack.unpack(ARGV[3])
local ASKS = { h = true, e = true, p = true, s = true }

local head, refusal = read_restoring(KEYS[1], attempt)
if not head then return refusal end
if head.relived >= tonumber(piece) then return { "done" } end
if head.relived ~= piece - 1 then return { "passed" } end -- the node was set back, and lacks the ones before
local asked, fields = {}, {}
for i = 1, #memories, 4 do
  if ASKS[memories[i]] then
    fields[#fields + 1] = memories[i + 1]
    asked[i] = #fields
  end
end
local found
found, refusal = find_records(head, memory, fields)
if not found then return refusal end
local known = {}
for i, field in ipairs(fields) do known[field] = found[i] end

local function look_at(order_id, at_ms)
  if at_ms > 0 then
    redis.call("ZADD", deadlines_key, int(at_ms), order_id)
  else
    redis.call("ZREM", deadlines_key, order_id)
  end
end

-- From here on it must succeed.
redis.call("HSET", head.key, "relived", piece)
local records_key, tombstones_key = current_records(head, memory), current_tombstones(head, memory)
local function remember(field, value)
  known[field] = value
  redis.call("HSET", records_key, field, value)
end
for i = 1, #memories, 4 do
  local what, field, value, at_ms = memories[i], memories[i + 1], memories[i + 2], memories[i + 3]
  if what == "r" or (what == "h" and not known[field]) then
    remember(field, value)
  elseif what == "t" then
    redis.call("HSET", tombstones_key, field, value)
  elseif what == "e" then
    remember(field, value .. (string.match(known[field] or "", "^%a%d+:%d+:(.*)$") or ""))
  elseif what == "o" or (what == "p" and not known[field]) then
    remember(field, value)
    look_at(string.sub(field, 7), at_ms)
  elseif what == "s" then
    local order = read_decision(known[field] or "")
    if order then
      order.state, order.is_open = value, order.is_alone and "0" or "1"
      remember(field, decision_text(order))
      local due_ms = value == "H" and order.deadline_ms or (order.is_open == "1" and at_ms or 0)
      look_at(string.sub(field, 7), due_ms)
    end
  end
end
return { "done" }
