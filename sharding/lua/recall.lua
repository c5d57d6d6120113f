#!lua flags=allow-oom
-- Remember requests that were sold from the ledger's buffer while the live stock was away: a repeat of one is a
-- replay from then on. What is known as taken stays as it is; what was refused for good, or was never to take
-- anything, did take units after all, as the ledger says.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] records_0  hash: request records, first generation; KEYS[3], KEYS[4] the others
-- KEYS[5] tombstones_0  hash: tombstones, first generation; KEYS[6], KEYS[7] the others
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] shard            integer >= 0, this shard's number in the layout that the caller routed by
-- ARGV[5] requests         packed, see sharding/packing.py
--
-- Returns one of
--   {"done", generation, number, news}  news: how many of them were not known as taken
--   {"fenced", why}
--   {"corrupt", what}
-- @include head
-- @include records

local memory = { KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local product, shard, requests = ARGV[3], ARGV[4], cmsgpack.unpack(ARGV[5])
local IS_TOMBSTONE = { i = true, n = true, b = true }

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local fields = {}
for i = 1, #requests / 4 do fields[i] = product .. ":" .. requests[4 * i - 3] end
local found
found, refusal = find_records(head, memory, fields)
if not found then return refusal end

local news = {}
for i, field in ipairs(fields) do
  if not found[i] or IS_TOMBSTONE[string.sub(found[i], 1, 1)] then
    news[#news + 1] = field
    news[#news + 1] = "d" .. int(requests[4 * i - 2]) .. ":" .. requests[4 * i - 1] .. ":0:" .. shard
  end
end
-- From here on it must succeed.
if #news > 0 then
  redis.call("HSET", current_records(head, memory), unpack(news))
else
  touch(head)
end
return { "done", head.generation, head.number, #news / 2 }
