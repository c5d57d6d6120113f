-- Orders: the terms that a line comes with, and the record by which an order is decided.
--
-- A line is a request under `order <order_id> <product>`, the product being that of the order's first line, or
-- `retake …` where it is taken once more. Two orders of one id share no line unless they begin alike.
--
-- Terms: `<what> <order_id> <ttl_ms> <lines>`, where what is
--   H  the order's only line, to be held for ttl_ms
--   P  the first of several lines; the order is undecided, and looked after once ttl_ms are over
--   C  the only line of an order that is sold at once
--   L  a further line: what becomes of it is decided elsewhere
--
-- Record, under the field `order <order_id>`, in the hashes of request records and in their generations:
--   `<state> <deadline_ms> <created_ms> <user> <open> <lines>`
-- lines: `<product>:<quantity>:<place>`, joined with commas, the coordinator's own first. place: the partition
-- that holds it, - the coordinator's own, ? not known, ! none. open: 1 while lines elsewhere may not have been told.
-- The tombstone of an order that was released before it came is n.
--
-- `deadlines` is a sorted set of orders by the time at which somebody has to look at them.

local function read_terms(text)
  local what, order_id, ttl_ms, lines = string.match(text, "^(%a) (%d+) (%d+) (%S+)$")
  assert(what, "terms")
  if what == "L" then return {} end
  return { state = what, order_id = order_id, ttl_ms = tonumber(ttl_ms), lines = lines }
end

local function new_decision(terms, now, user)
  local is_open = terms.state == "P" and "1" or "0"
  return terms.state .. " " .. int(now + terms.ttl_ms) .. " " .. int(now) .. " " .. user .. " " .. is_open
    .. " " .. terms.lines
end

-- A record as a table, or nil if it is none.
local function read_decision(text)
  local state, deadline_ms, created_ms, user, is_open, lines =
    string.match(text, "^(%u) (%d+) (%d+) (%d+) ([01]) (%S+)$")
  if not state then return nil end
  local product, quantity, place = string.match(lines, "^(%d+):(%d+):([-%d?]+)")
  if not (product and whole(deadline_ms) and whole(created_ms)) or string.find(lines, ",$") then return nil end
  return { state = state, deadline_ms = tonumber(deadline_ms), created_ms = created_ms, user = user,
    is_open = is_open, lines = lines, product = product, quantity = tonumber(quantity),
    is_alone = not string.find(lines, ",", 1, true) }
end

local function decision_text(order)
  return order.state .. " " .. int(order.deadline_ms) .. " " .. order.created_ms .. " " .. order.user .. " "
    .. order.is_open .. " " .. order.lines
end
