#!lua
-- Mark a shard as gathering, so that of two shards that need each other's units one goes first.
--
-- KEYS[1] head   hash: the partition's fence
-- KEYS[2] stock  hash: the shard
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] mark_ms          integer >= 1, how long the mark lasts
--
-- Returns one of
--   {"done", generation, number}
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include stock

local stock_key, mark_ms = KEYS[2], tonumber(ARGV[3])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
-- From here on it must succeed.
redis.call("HSET", stock_key, "gathering_until_ms", int(now_ms() + mark_ms))
return { "done", head.generation, head.number }
