#!lua flags=no-writes
-- Read one shard.
--
-- KEYS[1] head   hash: the partition's fence
-- KEYS[2] stock  hash: the shard
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
--
-- Returns one of
--   {"done", generation, number, fields}  the stock hash as a flat list of names and values
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include stock

local stock_key = KEYS[2]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
return { "done", head.generation, head.number, redis.call("HGETALL", stock_key) }
