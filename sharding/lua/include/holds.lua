-- The end of a line's hold: its units are sold, or come back.

local IS_SOLD = { C = true, K = true }

-- What the record of a line says: its letter (h while it is held), units, user and the rest; nil: no line.
local function read_line(value)
  local letter, quantity, user, rest = string.match(value or "", "^([dhcf])(%d+):(%d+):(.*)$")
  if not letter then return nil end
  return { letter = letter, quantity = tonumber(quantity), user = user, rest = rest }
end

-- Change `stock` and `changes` (records: flat list; ends: texts of the event; users: units to give back) for a
-- line that is held. False: fewer units are counted as held.
local function end_hold(stock, changes, product, request_id, line, why)
  if stock.held < line.quantity then return false end
  stock.held = stock.held - line.quantity
  if IS_SOLD[why] then
    stock.sold = stock.sold + line.quantity
  else
    stock.available = stock.available + line.quantity
    stock.moves = stock.moves + 1
    changes.users[line.user] = (changes.users[line.user] or 0) + line.quantity
  end
  local records = changes.records
  records[#records + 1] = product .. ":" .. request_id
  records[#records + 1] = (IS_SOLD[why] and "c" or "f") .. int(line.quantity) .. ":" .. line.user .. ":" .. line.rest
  changes.ends[#changes.ends + 1] = request_id .. ":" .. why .. ":" .. int(line.quantity) .. ":" .. line.user
  return true
end

-- Write what was decided about holds. Nothing here can fail.
local function write_ends(stock, changes, users_key, records_key)
  if #changes.ends > 0 then write_counts(stock) end
  if #changes.records > 0 then redis.call("HSET", records_key, unpack(changes.records)) end
  if stock.max_per_user == 0 then return end
  for user, units in pairs(changes.users) do
    give_back(users_key, user, units)
  end
end
