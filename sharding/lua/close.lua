#!lua flags=allow-oom
-- Give a closing shard's unsold units back to the ledger and leave a stone: epoch, what it gave and
-- got, no units. The stone keeps a delayed load from recreating the shard.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that is meant
--
-- Returns one of
--   {"done", generation, number}
--   {"busy", generation, number, why}  units are held or on their way, or the shard is not closing
--   {"passed", generation, number}     the shard has another epoch
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock

local stock_key, events_key = KEYS[2], KEYS[3]
local product, epoch = ARGV[3], tonumber(ARGV[4])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
if stock.epoch ~= epoch then return { "passed", head.generation, head.number } end
if stock.state == "closed" then
  touch(head)
  return { "done", head.generation, head.number }
end
local function busy(why) return { "busy", head.generation, head.number, why } end
if stock.state ~= "closing" then return busy("state") end
if stock.held > 0 then return busy("held") end
if has_open_transfers(stock) then return busy("in_transit") end

local given_back = stock.available
stock.available = 0
stock.loaded = stock.loaded - given_back
stock.moves = stock.moves + 1
refusal = append(events_key, head, shard_event("close", product, stock, "quantity", int(given_back),
  "state", "closed"))
if refusal then return refusal end
-- From here on it must succeed.
write_counts(stock)
redis.call("HSET", stock_key, "state", "closed")
return { "done", head.generation, head.number }
