-- One shard of one product.
--
-- Fields of a stock hash:
--   available, held, sold   units
--   loaded                  units that came in here by load and restock, less those removed or given back
--                           here; below zero where units left that came in at another shard
--   moves                   raised by every call that can bring units back or carry them away unsold
--   layout                  version of the newest layout that the shard was told of
--   serves                  1: it takes requests of that layout; 0: none, it only gives its units away;
--                           a shard that version 0.1 wrote has no such field and serves
--   epoch                   which load of the product this is
--   state                   loading, open, closing, closed
--   frozen                  1: nothing may be taken
--   freeze                  version of the decision that `frozen` follows; missing: there was none
--   repaired                <number> <call> of the last difference from the ledger that was compensated here
--   out:<partition>         <epoch>:<given>:<arrived>: units given to that receiver, and known to have arrived there
--   in:<partition>          <epoch>:<got>: units that have arrived from that donor
--   restored                <attempt>:<available>:<held>:<sold>: the attempt to restore the partition that gave it its
--                           counts, and those that it had before
--   visited                 1: it took requests whose home was away
--   released                units of the buffer that came in here in this epoch; 0 or missing: none. At the
--                           product's first shard only
--   max_per_user            units that one user may hold and buy in this epoch; 0 or missing: no limit
--   gathering_until_ms      while it lasts, the shard gives only to receivers with a lower number

local FLAGS = { ["0"] = true, ["1"] = true }
local STATES = { loading = true, open = true, closing = true, closed = true }

-- The shard as a table, or nil and the refusal.
local function read_stock(key)
  local values = redis.pcall("HMGET", key, "available", "held", "sold", "loaded", "moves", "layout",
    "epoch", "state", "frozen", "serves", "max_per_user")
  if values.err then return nil, { "corrupt", "stock" } end
  if redis.call("EXISTS", key) == 0 then return nil, { "missing" } end
  local stock = {
    key = key,
    available = whole(values[1]),
    held = whole(values[2]),
    sold = whole(values[3]),
    loaded = signed(values[4]),
    moves = whole(values[5]),
    layout = whole(values[6]),
    epoch = whole(values[7]),
    state = values[8],
    frozen = values[9] ~= "0",
    serves = values[10] ~= "0",
    max_per_user = whole(values[11] or "0"),
  }
  if not (stock.available and stock.held and stock.sold and stock.loaded and stock.moves
    and stock.layout and stock.epoch and STATES[stock.state] and FLAGS[values[9]] and FLAGS[values[10] or "1"]
    and stock.max_per_user) then
    return nil, { "corrupt", "stock" }
  end
  return stock
end

local function write_counts(stock)
  redis.call("HSET", stock.key, "available", int(stock.available), "held", int(stock.held),
    "sold", int(stock.sold), "loaded", int(stock.loaded), "moves", int(stock.moves))
end

-- A user of a product with a limit has fewer units from here on.
local function give_back(users_key, user, units)
  local left = (whole(redis.call("HGET", users_key, user) or "0") or 0) - units
  redis.call("HSET", users_key, user, int(math.max(0, left)))
end

-- The fields that every event of a shard carries, followed by the given ones.
local function shard_event(kind, product, stock, ...)
  return { "kind", kind, "product", product, "epoch", int(stock.epoch), "available",
    int(stock.available), "held", int(stock.held), "sold", int(stock.sold), "loaded",
    int(stock.loaded), ... }
end

-- What two shards know of the units that one gave the other, in the epoch of the shard; of an earlier epoch nothing
-- counts. Both sums only grow, and what one of the two has lost is the difference.

-- Of a note: units given to a receiver, and how many of them are known to have arrived. All, or some are on their
-- way; more arrived than were given where the shard has forgotten that it gave them, and has them still. nil: it is
-- no such note. Versions up to 0.4 wrote a number and the units that had not arrived.
local function parse_given(stock, note)
  local epoch, given, arrived = string.match(note, "^(%d+):(%d+):(%d+)$")
  if epoch and tonumber(epoch) == stock.epoch then return tonumber(given), tonumber(arrived) end
  if epoch then return 0, 0 end
  local open = string.match(note, "^%d+:(%d+)$")
  return tonumber(open), open and 0
end

local function read_given(stock, receiver)
  local note = redis.call("HGET", stock.key, "out:" .. receiver)
  if not note then return 0, 0 end
  return parse_given(stock, note)
end

local function write_given(stock, receiver, given, arrived)
  redis.call("HSET", stock.key, "out:" .. receiver, table.concat({ int(stock.epoch), int(given), int(arrived) }, ":"))
end

-- Units that arrived from a donor; nil: there is no such note. Versions up to 0.4 wrote a number.
local function read_got(stock, donor)
  local note = redis.call("HGET", stock.key, "in:" .. donor)
  if not note or string.find(note, "^%d+$") then return 0 end
  local epoch, got = string.match(note, "^(%d+):(%d+)$")
  if epoch and tonumber(epoch) ~= stock.epoch then return 0 end
  return tonumber(got)
end

local function write_got(stock, donor, got)
  redis.call("HSET", stock.key, "in:" .. donor, int(stock.epoch) .. ":" .. int(got))
end

-- Whether the shard's units move: they do not before it is opened, nor once it is closed.
local function moves_units(stock)
  return stock.state == "open" or stock.state == "closing"
end

-- Whether units have left for other shards, in the shard's epoch, and nobody has said that they arrived.
local function has_open_transfers(stock)
  local fields = redis.call("HGETALL", stock.key)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 4) == "out:" then
      local given, arrived = parse_given(stock, fields[i + 1])
      if given and given > arrived then return true end
    end
  end
  return false
end

-- Whether a shard of an earlier epoch may begin a new one: it was closed, or it never came to serve in its
-- own, because the change that it was to join was taken back, and has nothing.
local function is_over(stock)
  if stock.state == "closed" then return true end
  local is_empty = stock.available == 0 and stock.held == 0 and stock.sold == 0
  return is_empty and not stock.serves and not has_open_transfers(stock)
end
