#!lua flags=allow-oom
-- Tell a shard how many of the units that it gave another one have arrived there. If more have than it knows to
-- have given, it has forgotten a take and has those units still: it gives them up, as many as it has.
--
-- KEYS[1] head    hash: the donor's fence
-- KEYS[2] stock   hash: the donating shard
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] receiver         partition that the units were for
-- ARGV[5] epoch            integer >= 0, of the receiver's word; 0: only what the donor knows is asked for
-- ARGV[6] arrived          integer >= 0, units that have arrived in that epoch
--
-- Returns one of
--   {"done", generation, number, given, arrived, epoch}  as the shard knows them from here on; given is
--                                                        less than arrived: it owes units and has none
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock

local stock_key, events_key = KEYS[2], KEYS[3]
local product, receiver, epoch = ARGV[3], ARGV[4], tonumber(ARGV[5])
local told = tonumber(ARGV[6])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
local given, arrived = read_given(stock, receiver)
if not given then return { "corrupt", "stock" } end
local function answer()
  return { "done", head.generation, head.number, given, arrived, stock.epoch }
end
if epoch ~= stock.epoch or not moves_units(stock) then
  touch(head)
  return answer()
end

local paid = math.min(math.max(told, arrived) - given, stock.available)
if paid <= 0 and told <= arrived then
  touch(head)
  return answer()
end
arrived = math.max(told, arrived)
paid = math.max(paid, 0)
given = given + paid
if paid > 0 then
  stock.available = stock.available - paid
  stock.moves = stock.moves + 1
end
refusal = append(events_key, head, shard_event("ack", product, stock, "peer", receiver,
  "quantity", int(paid), "total", int(given), "arrived", int(arrived)))
if refusal then return refusal end
-- From here on it must succeed.
write_counts(stock)
write_given(stock, receiver, given, arrived)
return answer()
