-- Decide a list of requests against one shard and say what has to be written for them. Changes
-- `stock` but no key. In order of precedence a request is
--   R replayed, M mismatch, X refused before, N never, B barred, F frozen, S stale, O overloaded,
--   L ledger behind, U user limit, D deducted or H held, T refused for good, I insufficient.
--
-- `requests` is flat: request_id, quantity, user_id, order_id, and so on; for a line of an order that is
-- not an order_id but the line's terms, see include/orders.lua. `call` has product, layout, shard,
-- partition, record_cap, tombstone_cap, backlog_max, users (the key of the units that users have) and mode:
--   home   the usual one
--   final  what is short is refused for good, under a tombstone
--   visit  the requests' home is away and this shard stands in for it
--   look   only what is remembered is answered; nothing else is taken: it is insufficient
--   bar    the requests' home is about to act: what is not remembered is barred from being taken by a visit
-- Returns a table of statuses (one string), firsts ("<left>:<shard>" of the first copy of each R),
-- records and tombstones (flat lists of fields and values to write), sold and held (units), deadlines
-- (flat: times and orders), users (units by user, of a product with a limit), at_ms (the time if lines of orders
-- were taken), known (requests that were remembered); or nil and the refusal.

local NINE = string.byte("9")
-- The units were taken, and are sold (d, c), held (h), or came back (f).
local TAKEN = { d = true, h = true, c = true, f = true }

-- The units that a user has, as far as this call has come; nil if they make no sense.
local function units_of(users, key, user)
  return users[user] or whole(redis.call("HGET", key, user) or "0")
end

-- The terms of lines by their position in `requests`; adds the fields of the orders that are decided here.
local function terms_of(requests, fields)
  local terms = {}
  for i = 1, #requests / 4 do
    if string.byte(requests[4 * i]) > NINE then
      terms[i] = read_terms(requests[4 * i])
      if terms[i].state then
        fields[#fields + 1] = "order " .. terms[i].order_id
        terms[i].position = #fields
      end
    end
  end
  return terms
end

-- Note the decision that a line comes with, where the order is decided here.
local function note_decision(terms, at_ms, user, decided, records, deadlines)
  local field, decision = "order " .. terms.order_id, new_decision(terms, at_ms, user)
  decided[field] = decision
  records[#records + 1] = field
  records[#records + 1] = decision
  if terms.state == "C" then return end
  deadlines[#deadlines + 1] = int(at_ms + terms.ttl_ms)
  deadlines[#deadlines + 1] = terms.order_id
end

-- The status of a request that the partition remembers, and for R what its first copy was answered.
local function remembered(value, quantity, user)
  if value == "n" then return "N" end
  if value == "b" then return "B" end
  local same = int(quantity) .. ":" .. user .. ":"
  if string.sub(value, 2, #same + 1) == same then
    local letter = string.sub(value, 1, 1)
    if TAKEN[letter] then return "R", string.sub(value, #same + 2) end
    if letter == "i" then return "X" end
  end
  return "M"
end

-- Why nothing that is not remembered is decided here; nil: it is.
local function why_closed(count, call, stock, head, memory)
  local bars = call.mode == "bar"
  -- A stop may end before a late visit comes. A closed shard's layout takes nothing any more, nowhere.
  if stock.state == "closed" or (not bars and (stock.frozen or stock.state ~= "open")) then return "F" end
  if not stock.serves or stock.layout ~= tonumber(call.layout) then return "S" end
  if call.mode == "look" then return "I" end
  if not bars and is_full(current_records(head, memory), count, call.record_cap) then return "O" end
  local leaves_tombstones = bars or call.mode == "final"
  if leaves_tombstones and is_full(current_tombstones(head, memory), count, call.tombstone_cap) then
    return "O"
  end
  if is_behind(head, tonumber(call.backlog_max)) then return "L" end
  return nil
end

-- A late confirmation goes on while the ledger is behind: no more units can be taken again than were held.
local function is_refused(why, request_id)
  return why ~= "L" or string.sub(request_id, 1, 7) ~= "retake "
end

local function serve(requests, call, stock, head, memory)
  local count = #requests / 4
  local fields = {}
  for i = 1, count do fields[i] = call.product .. ":" .. requests[4 * i - 3] end
  local terms_at = terms_of(requests, fields)
  local found, refusal = find_records(head, memory, fields)
  if not found then return nil, refusal end

  local closed_to_new = why_closed(#fields, call, stock, head, memory)
  local statuses, firsts, records, tombstones, decided = {}, {}, {}, {}, {}
  local deadlines, users = {}, {}
  local sold, held, known, at_ms = 0, 0, 0, 0
  for i = 1, count do
    local quantity, user = requests[4 * i - 2], requests[4 * i - 1]
    assert(quantity >= 1 and quantity == math.floor(quantity), "quantity")
    local field, terms = fields[i], terms_at[i]
    local value = found[i] or decided[field]
    local units = stock.max_per_user > 0 and units_of(users, call.users, user)
    if units == nil then return nil, { "corrupt", "users" } end
    local order = terms and terms.position and (found[terms.position] or decided[fields[terms.position]])
    -- Barred is who comes to a stand-in; whoever comes home is not.
    if value == "b" and call.mode ~= "visit" and call.mode ~= "bar" then value = nil end
    if value then
      known = known + 1
      statuses[i], firsts[#firsts + 1] = remembered(value, quantity, user)
    elseif order and (order == "n" or call.mode ~= "bar") then
      -- It was released before it came, or its id is another order's, which has its first line here, too.
      known = known + 1
      statuses[i] = order == "n" and "N" or "M"
    elseif closed_to_new and is_refused(closed_to_new, requests[4 * i - 3]) then
      statuses[i] = closed_to_new
    elseif call.mode == "bar" then
      statuses[i], decided[field] = "B", "b"
      tombstones[#tombstones + 1] = field
      tombstones[#tombstones + 1] = "b"
    elseif units and units + quantity > stock.max_per_user then
      statuses[i] = "U"
    elseif quantity <= stock.available then
      stock.available = stock.available - quantity
      if units then users[user] = units + quantity end
      local is_held = terms and terms.state ~= "C"
      if is_held then
        statuses[i], held = "H", held + quantity
      else
        statuses[i], sold = "D", sold + quantity
      end
      value = (is_held and "h" or "d") .. int(quantity) .. ":" .. user .. ":" .. int(stock.available) .. ":"
        .. (terms and call.partition or call.shard)
      decided[field] = value
      records[#records + 1] = field
      records[#records + 1] = value
      if terms then at_ms = now_ms() end
      if terms and terms.state then note_decision(terms, at_ms, user, decided, records, deadlines) end
    elseif call.mode == "final" then
      statuses[i] = "T"
      value = "i" .. int(quantity) .. ":" .. user .. ":"
      decided[field] = value
      tombstones[#tombstones + 1] = field
      tombstones[#tombstones + 1] = value
    else
      statuses[i] = "I"
    end
  end
  stock.held, stock.sold = stock.held + held, stock.sold + sold
  return { statuses = table.concat(statuses), firsts = firsts, records = records,
    tombstones = tombstones, sold = sold, held = held, deadlines = deadlines, users = users,
    known = known, at_ms = at_ms }
end

-- Write what `serve` decided. Nothing here can fail.
local function remember(served, call, head, memory)
  if #served.records > 0 then
    redis.call("HSET", current_records(head, memory), unpack(served.records))
  end
  if #served.deadlines > 0 then redis.call("ZADD", call.deadlines, unpack(served.deadlines)) end
  for user, units in pairs(served.users) do redis.call("HSET", call.users, user, int(units)) end
  if #served.tombstones > 0 then
    redis.call("HSET", current_tombstones(head, memory), unpack(served.tombstones))
  end
end
