#!lua flags=allow-oom
-- Bring units on sale that the ledger kept back in the buffer. What counts is how many it has released since the
-- product was loaded, so calls may come twice and in any order, however late: what has not come yet comes in.
--
-- KEYS[1] head    hash: the fence of the base partition
-- KEYS[2] stock   hash: the product's first shard
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that is meant
-- ARGV[5] released         integer >= 1, units that have left the buffer since the load
--
-- Returns one of
--   {"done", generation, number, units}  so many came in by this call; 0: they had before
--   {"loading", generation, number}      the shard is not open yet
--   {"passed", generation, number}       it is not any more, or has another epoch: the ledger has the units
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock

local stock_key, events_key = KEYS[2], KEYS[3]
local product, epoch, released = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
local before = whole(redis.call("HGET", stock_key, "released") or "0")
if not before then return { "corrupt", "stock" } end
local function answer(word, ...) return { word, head.generation, head.number, ... } end

if stock.epoch ~= epoch then return answer("passed") end
if released <= before then
  touch(head)
  return answer("done", 0)
end
if stock.state == "loading" then return answer("loading") end
if stock.state ~= "open" then return answer("passed") end

local units = released - before
stock.available = stock.available + units
stock.loaded = stock.loaded + units
stock.moves = stock.moves + 1
refusal = append(events_key, head, shard_event("buffer", product, stock, "quantity", int(units)))
if refusal then return refusal end
-- From here on it must succeed.
write_counts(stock)
redis.call("HSET", stock_key, "released", int(released))
return answer("done", units)
