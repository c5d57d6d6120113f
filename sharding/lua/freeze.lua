#!lua flags=allow-oom
-- Stop a shard from giving units away, or let it go on, by the latest decision that comes. It is not fenced, and no
-- event: the ledger decides, and a node that is behind or not opened yet may as well know before it sells again.
--
-- KEYS[1] stock  hash: the shard
--
-- ARGV[1] version  integer >= 1, grows with every decision about the product
-- ARGV[2] frozen   1 or 0
--
-- Returns one of
--   {"done"}     the shard knows this decision, by this call or before, or a later one
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include freeze

local stock_key, version, frozen = KEYS[1], ARGV[1], ARGV[2]

local refusal = wrong_type(stock_key, "hash", "stock")
if refusal then return refusal end
if redis.call("EXISTS", stock_key) == 0 then return { "missing" } end
version, frozen = latest_freeze(stock_key, version, frozen)
-- From here on it must succeed. What is known is written again, so that a WAIT behind it covers it.
redis.call("HSET", stock_key, "freeze", version, "frozen", frozen)
return { "done" }
