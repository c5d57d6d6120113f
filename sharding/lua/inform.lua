#!lua
-- Copy what a product's base says of it to another partition of the product.
--
-- KEYS[1] head          hash: the partition's fence
-- KEYS[2] product_info  hash: the partition's copy
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] fields           packed flat list of names and values, the base's
--
-- Returns one of
--   {"done", generation, number}  the copy is as new as that, or newer
--   {"fenced", why}
--   {"corrupt", what}
-- @include head
-- @include info

local info_key = KEYS[2]
local fields = cmsgpack.unpack(ARGV[3])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local info
info, refusal = read_info(info_key)
if not info and refusal[1] ~= "missing" then return refusal end
local named = {}
for i = 1, #fields, 2 do named[fields[i]] = fields[i + 1] end
if not info or info.layout < tonumber(named.layout) then
  -- From here on it must succeed.
  redis.call("HSET", info_key, unpack(fields))
else
  touch(head)
end
return { "done", head.generation, head.number }
