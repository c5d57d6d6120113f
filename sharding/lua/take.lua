#!lua
-- Take units out of a shard for another shard of the product. How many it has given that one in all is counted on,
-- and the other one takes over what it lacks of them: so each unit arrives once, whoever brings it, and how often.
--
-- KEYS[1] head    hash: the donor's fence
-- KEYS[2] stock   hash: the donating shard
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] donor            partition of this shard
-- ARGV[5] receiver         partition that the units are for
-- ARGV[6] given            integer >= 0, units given to it before as the caller knows: of two callers one goes first
-- ARGV[7] quantity         integer >= 1, units wanted; fewer are taken where there are fewer
-- ARGV[8] layout           integer >= 1, the layout that the caller knows
--
-- Returns one of
--   {"taken", generation, number, units, given, epoch}  so many left, by which so many were given in all
--   {"open", generation, number}       not all that was given before is known to have arrived; finish that first
--   {"past", generation, number}       somebody else was faster
--   {"empty", generation, number}      nothing to take
--   {"gathering", generation, number}  the shard gathers units itself and goes first
--   {"stopped", generation, number}    the shard is not open
--   {"stale", generation, number}      the shard belongs to another layout
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock

local stock_key, events_key = KEYS[2], KEYS[3]
local product, donor, receiver = ARGV[3], ARGV[4], ARGV[5]
local known, quantity, layout = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_stock(stock_key)
if not stock then return refusal end
local function answer(word, ...)
  return { word, head.generation, head.number, ... }
end

local given, arrived = read_given(stock, receiver)
if not given then return { "corrupt", "stock" } end
-- What it owes it may give: of that nothing arrives once more.
if given > arrived then return answer("open") end
if given ~= known then return answer("past") end
if stock.frozen or stock.state ~= "open" then return answer("stopped") end
-- A shard that serves nobody gives its units to whoever knows a later layout.
local is_retired = not stock.serves and stock.layout < layout
if stock.layout ~= layout and not is_retired then return answer("stale") end
local gathering_until_ms = tonumber(redis.call("HGET", stock_key, "gathering_until_ms") or "0")
if gathering_until_ms > now_ms() and tonumber(receiver) > tonumber(donor) then
  return answer("gathering")
end
local units = math.min(quantity, stock.available)
if units == 0 then return answer("empty") end

stock.available = stock.available - units
stock.moves = stock.moves + 1
given = given + units
refusal = append(events_key, head, shard_event("take", product, stock, "peer", receiver,
  "quantity", int(units), "total", int(given)))
if refusal then return refusal end
-- From here on it must succeed.
write_counts(stock)
write_given(stock, receiver, given, arrived)
return answer("taken", units, given, stock.epoch)
