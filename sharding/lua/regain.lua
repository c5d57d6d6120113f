#!lua flags=allow-oom
-- Have units arrive once more that had arrived at a shard which has lost them, and that their donor does not have any more.
--
-- KEYS[1] head    hash: the receiver's fence
-- KEYS[2] stock   hash: the shard that has forgotten the put
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that is meant
-- ARGV[5] donor            partition that the units were taken from
-- ARGV[6] lost             integer >= 1, the number of the put that was lost
-- ARGV[7] quantity         integer >= 1, its units
--
-- Returns one of
--   {"done", generation, number}    by this call or before
--   {"passed", generation, number}  the shard is closed or has a later epoch
--   {"early", generation, number}   the shard has an earlier epoch as yet
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock

local stock_key, events_key = KEYS[2], KEYS[3]
local product, epoch, donor = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local lost, quantity = tonumber(ARGV[6]), tonumber(ARGV[7])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
local function answer(word)
  return { word, head.generation, head.number }
end

if is_past(stock, epoch) then return answer("passed") end
if stock.epoch < epoch then return answer("early") end
local note = "regained:" .. donor .. ":" .. int(lost)
local arrived = whole(redis.call("HGET", stock_key, "in:" .. donor) or "0")
if not arrived then return { "corrupt", "stock" } end
if redis.call("HEXISTS", stock_key, note) == 1 then
  touch(head)
  return answer("done")
end

stock.available = stock.available + quantity
stock.moves = stock.moves + 1
-- Later units of the same donor may have arrived; their number stays the last one.
refusal = append(events_key, head, shard_event("put", product, stock, "peer", donor,
  "transfer", int(math.max(arrived, lost)), "quantity", int(quantity), "regained", int(lost)))
if refusal then return refusal end
-- From here on it must succeed.
write_counts(stock)
redis.call("HSET", stock_key, "in:" .. donor, int(math.max(arrived, lost)), note, "1")
return answer("done")
