#!lua flags=allow-oom
-- Lead a shard from one state of its life to the next: loading to open, open to closing.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that is meant
-- ARGV[5] from             the state it must be in
-- ARGV[6] to               the state it is to be in
--
-- Returns one of
--   {"done", generation, number, state}  the state it is in now; "to", or another one that it was in
--   {"passed", generation, number}       the shard has another epoch
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock

local stock_key, events_key = KEYS[2], KEYS[3]
local product, epoch, from, to = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
if stock.epoch ~= epoch then return { "passed", head.generation, head.number } end
if stock.state ~= from then
  touch(head)
  return { "done", head.generation, head.number, stock.state }
end

refusal = append(events_key, head, shard_event("state", product, stock, "state", to))
if refusal then return refusal end
-- From here on it must succeed.
redis.call("HSET", stock_key, "state", to)
return { "done", head.generation, head.number, to }
