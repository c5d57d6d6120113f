#!lua flags=allow-oom
-- Enter the compensation of a difference between a shard and the ledger, once per difference: change the live
-- counts, and say in the stream what the ledger is to add to its own. Damaged counts are written anew.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that is meant
-- ARGV[5] drift            integer >= 1, the difference; later ones of a shard have greater numbers
-- ARGV[6] call             who calls, without spaces: tells a repeat of this call from another one
-- ARGV[7] live             packed list: what to add to available, held, sold and loaded here
-- ARGV[8] ledger           packed list: what the ledger is to add to the same
-- ARGV[9] actor            text for the journal
-- ARGV[10] reason          text for the journal
--
-- Returns one of
--   {"done", generation, number, by_this}  it is entered; by_this: 1 by this call, 0 by another one before
--   {"impossible", generation, number}     a count would be below zero
--   {"passed", generation, number}         the shard is closed or has another epoch
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include damage

local stock_key, events_key = KEYS[2], KEYS[3]
local product, epoch, drift, call = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local live, ledger = cmsgpack.unpack(ARGV[7]), cmsgpack.unpack(ARGV[8])
local actor, reason = ARGV[9], ARGV[10]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_damaged_stock(stock_key)
if not stock then return refusal end
local last, by = string.match(stock.repaired, "^(%d+) (.*)$")
if not last then return { "corrupt", "stock" } end
if drift <= tonumber(last) then
  touch(head)
  local is_this = drift == tonumber(last) and by == call
  return { "done", head.generation, head.number, is_this and 1 or 0 }
end
if stock.epoch ~= epoch or stock.state == "closed" then
  return { "passed", head.generation, head.number }
end
for i, name in ipairs(COUNTS) do
  stock[name] = stock[name] + live[i]
  if stock[name] < 0 and name ~= "loaded" then return { "impossible", head.generation, head.number } end
end
stock.moves = stock.moves + 1

local function spelled(units)
  return int(units[1]) .. " " .. int(units[2]) .. " " .. int(units[3]) .. " " .. int(units[4])
end
refusal = append(events_key, head, shard_event("repair", product, stock, "drift", int(drift), "live",
  spelled(live), "ledger", spelled(ledger), "actor", actor, "reason", reason))
if refusal then return refusal end
-- From here on it must succeed.
write_counts(stock)
redis.call("HSET", stock_key, "repaired", int(drift) .. " " .. call)
return { "done", head.generation, head.number, 1 }
