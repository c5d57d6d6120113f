#!lua
-- Take units of one product from one shard for a list of requests, each at most once.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
-- KEYS[4] records_0  hash: request records, first generation
-- KEYS[5] records_1  hash: request records, second generation
-- KEYS[6] records_2  hash: request records, third generation
--
-- ARGV[1] seen_generation  integer >= 0, with ARGV[2] the last event of this partition that the caller saw
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] layout           integer >= 1, the layout that the caller routed by
-- ARGV[5] record_cap       integer, records that one generation may hold
-- ARGV[6] requests         packed, see sharding/packing.py
--
-- Returns one of
--   {"done", generation, number, available, statuses, firsts, state}  one status byte a request, in
--       order of precedence R M F S O I D; firsts: what was left after the first copy of each R
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include records
-- @include serve

local stock_key, events_key = KEYS[2], KEYS[3]
local record_keys = { KEYS[4], KEYS[5], KEYS[6] }
local product, layout, record_cap = ARGV[3], ARGV[4], ARGV[5]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
local served
served, refusal = serve(cmsgpack.unpack(ARGV[6]), product, layout, record_cap, stock, head, record_keys)
if not served then return refusal end

if served.sold > 0 then
  refusal = append(events_key, head, shard_event("deduct", product, stock,
    "requests", ARGV[6], "statuses", served.statuses))
  if refusal then return refusal end
  -- From here on it must succeed.
  redis.call("HSET", stock_key, "available", int(stock.available), "sold", int(stock.sold))
  redis.call("HSET", current_records(head, record_keys), unpack(served.writes))
elseif #served.firsts > 0 then
  touch(head)
end
return { "done", head.generation, head.number, stock.available, served.statuses, served.firsts,
  stock.state }
