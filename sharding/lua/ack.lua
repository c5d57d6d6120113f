#!lua flags=allow-oom
-- Close a take's note after its units have arrived.
--
-- KEYS[1] head    hash: the donor's fence
-- KEYS[2] stock   hash: the donating shard
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] receiver         partition that the units were for
-- ARGV[5] transfer         integer >= 1, the number of the take
-- ARGV[6] after            id of an event of the receiver that is not before the put
--
-- Returns one of
--   {"done", generation, number}
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock

local stock_key, events_key = KEYS[2], KEYS[3]
local product, receiver, transfer = ARGV[3], ARGV[4], tonumber(ARGV[5])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
local last, open_units = read_out(stock_key, receiver)
if not last then return { "corrupt", "stock" } end
if last ~= transfer or open_units == 0 then
  touch(head)
  return { "done", head.generation, head.number }
end

refusal = append(events_key, head, shard_event("ack", product, stock, "peer", receiver,
  "transfer", int(transfer), "after", ARGV[6]))
if refusal then return refusal end
-- From here on it must succeed.
redis.call("HSET", stock_key, "out:" .. receiver, int(transfer) .. ":0")
return { "done", head.generation, head.number }
