#!lua
-- Put a product's units into one shard, once per epoch. The shard stays shut until state.lua opens it.
--
-- KEYS[1] head     hash: the partition's fence
-- KEYS[2] stock    hash: the shard
-- KEYS[3] events   stream that the worker drains into the ledger
-- KEYS[4] product_info  hash: the product's layout and settings
-- KEYS[5] users    hash: units that users have of this product; they begin anew
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1
-- ARGV[5] layout           integer >= 1
-- ARGV[6] shards           integer >= 1, shards of that layout
-- ARGV[7] amount           integer >= 0, units for this shard
-- ARGV[8] buffer           integer >= 0, units that the ledger keeps back
-- ARGV[9] sold_before      integer >= 0, units sold in earlier epochs
-- ARGV[10] former          shard counts of earlier layouts, with spaces between them
-- ARGV[11] max_per_user    integer >= 0, units that one user may hold and buy; 0: no limit
-- ARGV[12] freeze          integer >= 0, version of the last decision to stop or to resume the sale; 0: none
-- ARGV[13] frozen          1 or 0, what it was
--
-- Returns one of
--   {"done", generation, number, available, state}  the shard has that epoch, by this call or before
--   {"passed", generation, number}                  it has a later one
--   {"not_closed", generation, number}              its earlier epoch was never closed
--   {"fenced", why}
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include freeze

local stock_key, events_key, info_key, users_key = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local product, epoch, layout, shards = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local amount, buffer, sold_before, former = tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10]
local max_per_user, freeze, frozen = ARGV[11], ARGV[12], ARGV[13]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock and refusal[1] ~= "missing" then return refusal end
if redis.call("TYPE", info_key).ok ~= "hash" and redis.call("EXISTS", info_key) == 1 then
  return { "corrupt", "product_info" }
end
refusal = wrong_type(users_key, "hash", "users")
if refusal then return refusal end
if stock and stock.epoch == epoch then
  touch(head)
  return { "done", head.generation, head.number, stock.available, stock.state }
end
if stock and stock.epoch > epoch then return { "passed", head.generation, head.number } end
if stock and not is_over(stock) then return { "not_closed", head.generation, head.number } end

local loaded = { key = stock_key, available = amount, held = 0, sold = 0, loaded = amount,
  moves = (stock and stock.moves or 0) + 1, epoch = epoch }
refusal = append(events_key, head, shard_event("load", product, loaded, "quantity", int(amount),
  "layout", int(layout), "state", "loading"))
if refusal then return refusal end
-- From here on it must succeed.
freeze, frozen = latest_freeze(stock_key, freeze, frozen)
write_counts(loaded)
redis.call("HSET", stock_key, "layout", int(layout), "epoch", int(epoch), "state", "loading",
  "freeze", freeze, "frozen", frozen, "serves", "1", "released", "0", "max_per_user", max_per_user)
redis.call("UNLINK", users_key)
redis.call("HSET", users_key, "-", "")
redis.call("HSET", info_key, "layout", int(layout), "shards", shards, "epoch", int(epoch), "buffer",
  buffer, "sold_before", sold_before, "former", former, "earlier", "", "next_layout", "0",
  "since_ms", int(now_ms()), "max_per_user", max_per_user)
return { "done", head.generation, head.number, amount, "loading" }
