#!lua flags=allow-oom
-- Let units that another shard gave arrive, as far as they have not, and serve the requests that waited for them.
--
-- KEYS[1] head    hash: the receiver's fence
-- KEYS[2] stock   hash: the receiving shard
-- KEYS[3] events  stream that the worker drains into the ledger
-- KEYS[4] records_0  hash: request records, first generation; KEYS[5], KEYS[6] the others
-- KEYS[7] tombstones_0  hash: tombstones, first generation; KEYS[8], KEYS[9] the others
-- KEYS[10] deadlines  sorted set: orders by the time at which somebody has to look at them
-- KEYS[11] users      hash: units that users have of this product, where it has a limit
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] layout           integer >= 1
-- ARGV[5] record_cap       integer, records that one generation may hold
-- ARGV[6] tombstone_cap    integer, tombstones that one generation may hold
-- ARGV[7] backlog_max      integer, events that may wait for the ledger
-- ARGV[8] shard            integer >= 0, this shard's number in that layout
-- ARGV[9] partition        this shard's partition
-- ARGV[10] requests        packed, see sharding/packing.py; may be an empty list
-- ARGV[11] donor           partition that the units were taken from
-- ARGV[12] epoch           integer >= 0, the donor's; the units of another one stay where they are
-- ARGV[13] given           integer >= 0, units that the donor has given this shard in that epoch, in all
--
-- Returns one of
--   {"done", generation, number, available, statuses, firsts, state, at_ms, got}  as deduct.lua; got: units that
--                                        have arrived from that donor in that epoch, in all; of another epoch 0
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
local product, requests = ARGV[3], ARGV[10]
local call = { product = product, layout = ARGV[4], record_cap = ARGV[5], tombstone_cap = ARGV[6],
  backlog_max = ARGV[7], shard = ARGV[8], partition = ARGV[9], mode = "home", deadlines = KEYS[10],
  users = KEYS[11] }
local donor, epoch, given = ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2], events_key)
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
local got = read_got(stock, donor)
if not got then return { "corrupt", "stock" } end
if stock.epoch ~= epoch then got = 0 end
local units = stock.epoch == epoch and moves_units(stock) and math.max(given - got, 0) or 0
if units > 0 then
  got = given
  stock.available = stock.available + units
  stock.moves = stock.moves + 1
end
refusal = wrong_type(KEYS[10], "zset", "deadlines") or wrong_type(KEYS[11], "hash", "users")
if refusal then return refusal end
local served
served, refusal = serve(cmsgpack.unpack(requests), call, stock, head, memory)
if not served then return refusal end

local done = { "done", head.generation, head.number, stock.available, served.statuses, served.firsts,
  stock.state, served.at_ms, got }
if units == 0 and served.sold + served.held == 0 then
  touch(head)
  return done
end
local event
if units > 0 then
  event = shard_event("put", product, stock, "peer", donor, "quantity", int(units), "total", int(got),
    "requests", requests, "statuses", served.statuses, "shard", call.shard)
else
  event = shard_event("deduct", product, stock, "requests", requests, "statuses", served.statuses, "shard", call.shard)
end
refusal = append(events_key, head, event)
if refusal then return refusal end
-- From here on it must succeed.
done[3] = head.number
write_counts(stock)
if units > 0 then write_got(stock, donor, got) end
remember(served, call, head, memory)
return done
