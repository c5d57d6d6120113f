#!lua flags=allow-oom
-- Append a marker to a shard's stream: an entry without operations, with the shard's counts. The worker compares
-- them with the ledger's at that very point. Run twice it leaves two markers, each of them right.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that is meant
--
-- Returns one of
--   {"done", generation, number, damaged, available, held, sold, loaded}  the marker is <generation>-<number>;
--       damaged names counts that no script has written, with spaces between them
--   {"passed", generation, number}  the shard has another epoch
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include damage

local stock_key, events_key = KEYS[2], KEYS[3]
local product, epoch = ARGV[3], tonumber(ARGV[4])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local stock
stock, refusal = read_damaged_stock(stock_key)
if not stock then return refusal end
if stock.epoch ~= epoch then return { "passed", head.generation, head.number } end

refusal = append(events_key, head, shard_event("mark", product, stock, "damaged", stock.damaged))
if refusal then return refusal end
return { "done", head.generation, head.number, stock.damaged, stock.available, stock.held, stock.sold, stock.loaded }
