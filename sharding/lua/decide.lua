#!lua flags=allow-oom
-- Decide orders at their coordinator, and end the holds of their first lines by that decision.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard of the orders' first lines
-- KEYS[3] events  stream that the worker drains into the ledger
-- KEYS[4] records_0  hash: request records, first generation; KEYS[5], KEYS[6] the others
-- KEYS[7] tombstones_0  hash: tombstones, first generation; KEYS[8], KEYS[9] the others
-- KEYS[10] deadlines  sorted set: orders by the time at which somebody has to look at them
-- KEYS[11] users      hash: units that users have of this product
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1, of the orders' first lines
-- ARGV[4] delivery_ms      integer, after which a decision counts as not delivered
-- ARGV[5] hold_ms_max      integer, so long after it was made no order is held any more
-- ARGV[6] wants            packed flat list: order_id, what, ttl_ms, lines, and so on; what is one of
--     C confirm, R release, E expire, X extend to now + ttl_ms
--     H all lines are held as `lines` says, for ttl_ms; S the same, and sell them
--     A a line is short, `lines` says which are held; G give up what is undecided
--     T take the lines again, within ttl_ms; K they are held as `lines` says; F they cannot be had
--     D lines elsewhere have been told of the state that `lines` names
--   H, S and G also end the state Q, of an order whose coordinator was restored: H with the deadline that it had
--
-- Returns one of
--   {"done", generation, number, answers}  flat: whether the call changed the order (1 or 0), its record; the
--       record is empty where there is none, n where it was released before it came; an order whose first
--       line is of another product is not changed
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include records
-- @include orders
-- @include holds

local stock_key, events_key = KEYS[2], KEYS[3]
local memory = { KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
local deadlines_key, users_key = KEYS[10], KEYS[11]
local product, delivery_ms, hold_ms_max = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local wants = cmsgpack.unpack(ARGV[6])

-- The state that each wish leads to from each state; a hold whose time is over counts as expired.
local NEXT = {
  C = { H = "C" },
  R = { H = "R", P = "R" },
  E = {},
  X = { H = "H" },
  H = { P = "H", Q = "H" },
  S = { P = "C", Q = "C" },
  A = { P = "A" },
  G = { P = "R", Q = "R" },
  T = { E = "T" },
  K = { T = "K" },
  F = { T = "F" },
  D = {},
}
local HOLDS = { P = true, H = true, Q = true }
local IS_UNDECIDED = { P = true, H = true, Q = true, T = true }
local SETS_LINES = { H = true, S = true, A = true, K = true }
local SETS_DEADLINE = { H = true, X = true }

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local count = #wants / 4
local fields = {}
for i = 1, count do
  fields[2 * i - 1] = "order " .. wants[4 * i - 3]
  fields[2 * i] = product .. ":order " .. wants[4 * i - 3] .. " " .. product
end
local found
found, refusal = find_records(head, memory, fields)
if not found then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
refusal = wrong_type(deadlines_key, "zset", "deadlines") or wrong_type(users_key, "hash", "users")
if refusal then return refusal end

local now = now_ms()
local changes = { records = {}, ends = {}, users = {} }
local answers, decisions, texts, due, done, decided = {}, {}, {}, {}, {}, {}

-- When an order is to be looked at again; nil: never.
local function next_look(order, ttl_ms)
  if order.state == "P" or order.state == "H" then return order.deadline_ms end
  if order.state == "T" then return now + ttl_ms end
  if order.is_open == "1" then return now + delivery_ms end
  return nil
end

local function change(order, order_id, what, ttl_ms, lines)
  if what == "D" then
    -- A call that was held up may speak of an earlier state.
    if order.state ~= lines or IS_UNDECIDED[order.state] then return false end
    order.is_open = "0"
    return true
  end
  local is_late = order.state == "H" and now > order.deadline_ms
  local target = is_late and "E" or NEXT[what][order.state]
  if what == "E" and not is_late then target = nil end
  if not target then return false end
  local until_ms = math.min(now + ttl_ms, order.created_ms + hold_ms_max)
  if what == "X" and not is_late and until_ms <= order.deadline_ms then return false end
  if HOLDS[order.state] and not HOLDS[target] then
    local line = read_line(found[2 * order.position] or "")
    local is_whole = line and line.letter == "h" and line.quantity == order.quantity and line.user == order.user
    if not is_whole then return nil end
    if not end_hold(stock, changes, product, "order " .. order_id .. " " .. product, line, target) then
      return nil
    end
  end
  local keeps_deadline = is_late or order.state == "Q"
  -- What is sold at once, refused or given up was never held.
  if order.state == "P" and target ~= "H" then order.deadline_ms = tonumber(order.created_ms) end
  order.state = target
  if target == what or (what == "S" and target == "C") then
    if SETS_LINES[what] then order.lines = lines end
  end
  if not keeps_deadline and SETS_DEADLINE[what] then order.deadline_ms = until_ms end
  local is_here = order.is_alone and target ~= "T" and target ~= "K" and target ~= "F"
  order.is_open = is_here and "0" or "1"
  decisions[#decisions + 1] = order_id .. ":" .. target .. ":" .. order.user
  return true
end

for i = 1, count do
  local order_id, what, ttl_ms, lines = wants[4 * i - 3], wants[4 * i - 2], wants[4 * i - 1], wants[4 * i]
  local text = decided[order_id] or found[2 * i - 1] or ""
  local order = read_decision(text)
  local has_changed = false
  if order and order.product == product then
    order.position = i
    has_changed = change(order, order_id, what, ttl_ms, lines)
    if has_changed == nil then return { "corrupt", "held" } end
    if has_changed then
      text = decision_text(order)
      decided[order_id] = text
      texts[#texts + 1] = order_id .. " " .. text
      changes.records[#changes.records + 1] = "order " .. order_id
      changes.records[#changes.records + 1] = text
      local look = next_look(order, ttl_ms)
      if look then
        due[order_id] = look
        done[order_id] = nil
      else
        due[order_id] = nil
        done[order_id] = true
      end
    end
  end
  answers[2 * i - 1] = has_changed and 1 or 0
  answers[2 * i] = text
end
if #changes.records == 0 then
  touch(head)
  return { "done", head.generation, head.number, answers }
end

if #decisions > 0 then
  refusal = append(events_key, head, shard_event("orders", product, stock, "ends",
    table.concat(changes.ends, ","), "decisions", table.concat(decisions, ","),
    "orders", table.concat(texts, ";")))
  if refusal then return refusal end
else
  touch(head)
end
-- From here on it must succeed.
write_ends(stock, changes, users_key, current_records(head, memory))
for order_id, at_ms in pairs(due) do redis.call("ZADD", deadlines_key, int(at_ms), order_id) end
for order_id in pairs(done) do redis.call("ZREM", deadlines_key, order_id) end
return { "done", head.generation, head.number, answers }
