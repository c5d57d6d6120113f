#!lua
-- Take units of one product from one shard for a list of requests, each at most once: sell them, or hold
-- them for an order.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
-- KEYS[4] records_0  hash: request records, first generation; KEYS[5], KEYS[6] the others
-- KEYS[7] tombstones_0  hash: tombstones, first generation; KEYS[8], KEYS[9] the others
-- KEYS[10] deadlines  sorted set: orders by the time at which somebody has to look at them
-- KEYS[11] users      hash: units that users have of this product, where it has a limit
--
-- ARGV[1] seen_generation  integer >= 0, with ARGV[2] the last event of this partition that the caller saw
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] layout           integer >= 1, the layout that the caller routed by
-- ARGV[5] record_cap       integer, records that one generation may hold
-- ARGV[6] tombstone_cap    integer, tombstones that one generation may hold
-- ARGV[7] backlog_max      integer, events that may wait for the ledger
-- ARGV[8] shard            integer >= 0, this shard's number in that layout
-- ARGV[9] partition        this shard's partition
-- ARGV[10] mode            home, final, visit, look or bar, see include/serve.lua
-- ARGV[11] requests        packed, see sharding/packing.py
--
-- Returns one of
--   {"done", generation, number, available, statuses, firsts, state, at_ms}  one status byte a request, in
--       order of precedence R M X N B F S O L U D H T I; firsts: "<left>:<shard>" of the first copy of each R;
--       at_ms: when lines of orders were taken, 0 where none were
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include records
-- @include orders
-- @include serve

local stock_key, events_key = KEYS[2], KEYS[3]
local memory = { KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
local product, requests = ARGV[3], ARGV[11]
local call = { product = product, layout = ARGV[4], record_cap = ARGV[5], tombstone_cap = ARGV[6],
  backlog_max = ARGV[7], shard = ARGV[8], partition = ARGV[9], mode = ARGV[10], deadlines = KEYS[10],
  users = KEYS[11] }

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2], events_key)
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
refusal = wrong_type(KEYS[10], "zset", "deadlines") or wrong_type(KEYS[11], "hash", "users")
if refusal then return refusal end
local served
served, refusal = serve(cmsgpack.unpack(requests), call, stock, head, memory)
if not served then return refusal end

local taken = served.sold + served.held
if taken > 0 or #served.tombstones > 0 then
  refusal = append(events_key, head, shard_event("deduct", product, stock,
    "requests", requests, "statuses", served.statuses, "shard", call.shard))
  if refusal then return refusal end
  -- From here on it must succeed.
  if taken > 0 then
    redis.call("HSET", stock_key, "available", int(stock.available), "held", int(stock.held), "sold",
      int(stock.sold))
  end
  if taken > 0 and call.mode == "visit" then
    redis.call("HSET", stock_key, "visited", "1")
  end
  remember(served, call, head, memory)
elseif served.known > 0 then
  touch(head)
end
return { "done", head.generation, head.number, stock.available, served.statuses, served.firsts,
  stock.state, served.at_ms }
