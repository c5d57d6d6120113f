#!lua
-- Note at a product's base that another layout is on its way, or that it will never be. Whoever changes the
-- layout looks here first.
--
-- KEYS[1] head          hash: the fence of the base partition
-- KEYS[2] product_info  hash: the product's layout and settings
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] epoch            integer >= 1, the load that is meant
-- ARGV[4] layout           integer >= 1, version of the new layout
-- ARGV[5] shards           integer, shards of the new layout; 0: it is given up
--
-- Returns one of
--   {"done", generation, number}        it is noted, by this call or before
--   {"passed", generation, number}      the product has that layout already, or a later one, or epoch, or
--                                       it was given up
--   {"busy", generation, number, other} a layout is on its way: another one, or the one to be given up
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include info

local epoch, layout, shards = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local info
info, refusal = read_info(KEYS[2])
if not info then return refusal end
local function answer(word, ...) return { word, head.generation, head.number, ... } end

if info.epoch ~= epoch or info.layout >= layout then return answer("passed") end
if shards == "0" then
  if info.next_layout == layout then return answer("busy", info.next_layout) end
  -- From here on it must succeed.
  redis.call("HSET", KEYS[2], "given_up", int(math.max(layout, info.given_up)))
  return answer("done")
end
if info.given_up >= layout then return answer("passed") end
if info.next_layout == layout then
  touch(head)
  return answer("done")
end
if info.next_layout ~= 0 then return answer("busy", info.next_layout) end
redis.call("HSET", KEYS[2], "next_layout", int(layout), "next_shards", shards)
return answer("done")
