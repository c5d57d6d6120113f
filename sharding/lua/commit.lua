#!lua
-- Decide at a product's base that a layout is in force from here on.
--
-- KEYS[1] head          hash: the fence of the base partition
-- KEYS[2] product_info  hash: the product's layout and settings
-- KEYS[3] events        stream that the worker drains into the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] epoch            integer >= 1, the load that is meant
-- ARGV[5] prepared         integer >= 1, the layout that was on its way
-- ARGV[6] layout           integer >= 1, version of the layout to be in force
-- ARGV[7] shards           integer >= 1
-- ARGV[8] earlier          shard counts of earlier layouts of the epoch, with spaces between them
-- ARGV[9] former           shard counts of all earlier layouts, with spaces between them
-- ARGV[10] reason          text for the journal
--
-- Returns one of
--   {"done", generation, number}    it is in force, by this call or before
--   {"passed", generation, number}  another one was decided, or the epoch is over
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include info

local info_key, events_key = KEYS[2], KEYS[3]
local product, epoch = ARGV[3], tonumber(ARGV[4])
local prepared, layout, shards = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local earlier, former, reason = ARGV[8], ARGV[9], ARGV[10]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local info
info, refusal = read_info(info_key)
if not info then return refusal end
if info.epoch == epoch and info.layout == layout then
  touch(head)
  return { "done", head.generation, head.number }
end
if info.epoch ~= epoch or info.next_layout ~= prepared then
  return { "passed", head.generation, head.number }
end

refusal = append(events_key, head, { "kind", "reshard", "product", product, "epoch", int(epoch),
  "layout", int(layout), "shards", shards, "former", former, "reason", reason })
if refusal then return refusal end
-- From here on it must succeed.
redis.call("HSET", info_key, "layout", int(layout), "shards", shards, "earlier", earlier, "former", former,
  "since_ms", int(now_ms()), "next_layout", "0")
return { "done", head.generation, head.number }
