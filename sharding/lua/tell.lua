#!lua
-- Tell one shard of a layout: that it serves it, or that it serves nobody until it is told of another. A
-- shard that the epoch did not have yet begins with no units.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
-- KEYS[4] users   hash: units that users have of this product
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that is meant
-- ARGV[5] layout           integer >= 1
-- ARGV[6] serves           1 or 0; within one layout only 0 to 1 is possible
-- ARGV[7] freeze           integer >= 0, version of the last decision to stop or to resume the sale; 0: none
-- ARGV[8] frozen           1 or 0, what it was
--
-- Returns one of
--   {"done", generation, number}        it knows this layout, by this call or before
--   {"passed", generation, number}      it knows a later layout or has a later epoch
--   {"not_open", generation, number}    it is not on sale, or an earlier epoch was never closed
--   {"fenced", why}
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include freeze

local stock_key, events_key, users_key = KEYS[2], KEYS[3], KEYS[4]
local product, epoch, layout, serves = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local freeze, frozen = ARGV[7], ARGV[8]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock and refusal[1] ~= "missing" then return refusal end
refusal = wrong_type(users_key, "hash", "users")
if refusal then return refusal end
local function answer(word) return { word, head.generation, head.number } end

local joins = not stock or stock.epoch < epoch
if joins then
  if stock and not is_over(stock) then return answer("not_open") end
  stock = { key = stock_key, available = 0, held = 0, sold = 0, loaded = 0,
    moves = (stock and stock.moves or 0) + 1, epoch = epoch }
else
  if stock.epoch > epoch or stock.layout > layout then return answer("passed") end
  if stock.state ~= "open" then return answer("not_open") end
  if stock.layout == layout and (stock.serves or serves == "0") then
    touch(head)
    return answer("done")
  end
end

refusal = append(events_key, head, shard_event("layout", product, stock, "layout", int(layout),
  "serves", serves, "joins", joins and "1" or "0", "state", "open"))
if refusal then return refusal end
-- From here on it must succeed.
freeze, frozen = latest_freeze(stock_key, freeze, frozen)
if joins then
  write_counts(stock)
  redis.call("HSET", stock_key, "epoch", int(epoch), "state", "open", "max_per_user", "0")
  redis.call("HSETNX", users_key, "-", "")
end
redis.call("HSET", stock_key, "layout", int(layout), "serves", serves, "freeze", freeze, "frozen", frozen)
return answer("done")
