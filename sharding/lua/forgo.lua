#!lua flags=allow-oom
-- Give up units that another shard was sent by a take which was lost: they are there, and here once more.
--
-- KEYS[1] head    hash: the donor's fence
-- KEYS[2] stock   hash: the shard that has forgotten the take
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that is meant
-- ARGV[5] receiver         partition that has the units
-- ARGV[6] lost             integer >= 1, the number of the take that was lost
-- ARGV[7] quantity         integer >= 1, its units
--
-- Returns one of
--   {"done", generation, number}               by this call or before
--   {"open", generation, number, transfer, units}  a take for that receiver is open; finish it first
--   {"short", generation, number, available}   there are not so many units; nothing was done
--   {"passed", generation, number}             the shard is closed or has a later epoch
--   {"early", generation, number}              the shard has an earlier epoch as yet
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock

local stock_key, events_key = KEYS[2], KEYS[3]
local product, epoch, receiver = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local lost, quantity = tonumber(ARGV[6]), tonumber(ARGV[7])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
local function answer(word, ...)
  return { word, head.generation, head.number, ... }
end

if is_past(stock, epoch) then return answer("passed") end
if stock.epoch < epoch then return answer("early") end
local note = "forgone:" .. receiver .. ":" .. int(lost)
if redis.call("HEXISTS", stock_key, note) == 1 then
  touch(head)
  return answer("done")
end
local last, open_units = read_out(stock_key, receiver)
if not last then return { "corrupt", "stock" } end
if open_units > 0 then return answer("open", last, open_units) end
if stock.available < quantity then return answer("short", stock.available) end

local transfer = int(last + 1)
stock.available = stock.available - quantity
stock.moves = stock.moves + 1
refusal = append(events_key, head, shard_event("take", product, stock, "peer", receiver,
  "transfer", transfer, "quantity", int(quantity), "forgone", int(lost)))
if refusal then return refusal end
-- From here on it must succeed.
write_counts(stock)
redis.call("HSET", stock_key, "out:" .. receiver, transfer .. ":0", note, "1")
return answer("done")
