#!lua flags=allow-oom
-- Give a shard of a partition that is being restored what the ledger knows of it, once in an attempt.
--
-- KEYS[1] head     hash: the partition's fence
-- KEYS[2] stock    hash: the shard
-- KEYS[3] product_info  hash: the product's layout and settings
-- KEYS[4] users    hash: units that users have of this product
--
-- ARGV[1] attempt  integer >= 1, the generation that this attempt was issued
-- ARGV[2] freeze   integer >= 0, version of the last decision to stop or to resume the sale; 0: none
-- ARGV[3] frozen   1 or 0, what it was
-- ARGV[4] stock    packed flat list of names and values; empty: there is no such shard
-- ARGV[5] info     packed flat list of names and values
--
-- Returns one of
--   {"done", available, held, sold}  what the shard had before the attempt, as text; nothing after the word: no shard
--   {"passed"}         another attempt has begun, or this one has ended
--   {"corrupt", what}
-- @include head
-- @include freeze
-- @include restoring

local stock_key, info_key, users_key = KEYS[2], KEYS[3], KEYS[4]
local attempt, freeze, frozen = ARGV[1], ARGV[2], ARGV[3]
local fields, info = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5])

local head, refusal = read_restoring(KEYS[1], attempt)
if not head then return refusal end
local before, moves = { "done" }, 0
if redis.call("TYPE", stock_key).ok == "hash" then
  local values = redis.call("HMGET", stock_key, "available", "held", "sold", "moves", "restored")
  local restored, had_available, had_held, had_sold = string.match(values[5] or "", "^(%d+):(%d*):(%d*):(%d*)$")
  if restored == attempt then return { "done", had_available, had_held, had_sold } end
  before = { "done", values[1] or "", values[2] or "", values[3] or "" }
  moves = whole(values[4]) or 0
  freeze, frozen = latest_freeze(stock_key, freeze, frozen)
end
-- From here on it must succeed.
redis.call("UNLINK", stock_key, info_key, users_key)
if #fields == 0 then return before end
-- Each event can have raised it once.
redis.call("HSET", stock_key, "moves", int(math.max(moves, head.number) + 1), "freeze", freeze, "frozen", frozen,
  "restored", attempt .. ":" .. table.concat({ before[2] or "", before[3] or "", before[4] or "" }, ":"),
  unpack(fields))
redis.call("HSET", users_key, "-", "")
redis.call("HSET", info_key, "since_ms", int(now_ms()), unpack(info))
return before
