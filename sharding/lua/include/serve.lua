-- Decide a list of requests against one shard and say what has to be written for them. Changes
-- `stock` but no key. In order of precedence a request is
--   R replayed, M mismatch, X refused before, N never, B barred, F frozen, S stale, O overloaded,
--   D deducted, T refused for good, I insufficient.
--
-- `requests` is flat: request_id, quantity, user_id, order_id, and so on. `call` has product, layout,
-- shard, record_cap, tombstone_cap and mode:
--   home   the usual one
--   final  what is short is refused for good, under a tombstone
--   visit  the requests' home is away and this shard stands in for it
--   look   only what is remembered is answered; everything else is stale
-- Returns a table of statuses (one string), firsts ("<left>:<shard>" of the first copy of each R),
-- records and tombstones (flat lists of fields and values to write), sold (units), known (requests that
-- were remembered); or nil and the refusal.

-- The status of a request that the partition remembers, and for R what its first copy was answered.
local function remembered(value, quantity, user)
  if value == "n" then return "N" end
  if value == "b" then return "B" end
  local same = int(quantity) .. ":" .. user .. ":"
  if string.sub(value, 2, #same + 1) == same then
    local letter = string.sub(value, 1, 1)
    if letter == "d" then return "R", string.sub(value, #same + 2) end
    if letter == "i" then return "X" end
  end
  return "M"
end

local function why_closed(count, call, stock, head, memory)
  if stock.frozen or stock.state ~= "open" then return "F" end
  if call.mode == "look" or not stock.serves or stock.layout ~= tonumber(call.layout) then return "S" end
  if is_full(current_records(head, memory), count, call.record_cap) then return "O" end
  if call.mode == "final" and is_full(current_tombstones(head, memory), count, call.tombstone_cap) then
    return "O"
  end
  return nil
end

local function serve(requests, call, stock, head, memory)
  local count = #requests / 4
  local fields = {}
  for i = 1, count do fields[i] = call.product .. ":" .. requests[4 * i - 3] end
  local found, refusal = find_records(head, memory, fields)
  if not found then return nil, refusal end

  local closed_to_new = why_closed(count, call, stock, head, memory)
  local statuses, firsts, records, tombstones, decided = {}, {}, {}, {}, {}
  local sold, known = 0, 0
  for i = 1, count do
    local quantity, user = requests[4 * i - 2], requests[4 * i - 1]
    assert(quantity >= 1 and quantity == math.floor(quantity), "quantity")
    local field = fields[i]
    local value = found[i] or decided[field]
    -- Barred is who comes to a stand-in; whoever comes home is not.
    if value == "b" and call.mode ~= "visit" then value = nil end
    if value then
      known = known + 1
      statuses[i], firsts[#firsts + 1] = remembered(value, quantity, user)
    elseif closed_to_new then
      statuses[i] = closed_to_new
    elseif quantity <= stock.available then
      statuses[i] = "D"
      stock.available = stock.available - quantity
      stock.sold = stock.sold + quantity
      sold = sold + quantity
      value = "d" .. int(quantity) .. ":" .. user .. ":" .. int(stock.available) .. ":" .. call.shard
      decided[field] = value
      records[#records + 1] = field
      records[#records + 1] = value
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
  return { statuses = table.concat(statuses), firsts = firsts, records = records,
    tombstones = tombstones, sold = sold, known = known }
end

-- Write what `serve` decided. Nothing here can fail.
local function remember(served, head, memory)
  if #served.records > 0 then
    redis.call("HSET", current_records(head, memory), unpack(served.records))
  end
  if #served.tombstones > 0 then
    redis.call("HSET", current_tombstones(head, memory), unpack(served.tombstones))
  end
end
