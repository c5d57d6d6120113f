#!lua flags=no-writes
-- Read what a partition knows of a product.
--
-- KEYS[1] head          hash: the partition's fence
-- KEYS[2] product_info  hash: the product's layout and settings
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
--
-- Returns one of
--   {"done", generation, number, fields}  a flat list of names and values; empty: never loaded
--   {"fenced", why}
--   {"corrupt", what}
-- @include head

local info_key = KEYS[2]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local fields = redis.pcall("HGETALL", info_key)
if fields.err then return { "corrupt", "product_info" } end
return { "done", head.generation, head.number, fields }
