#!lua flags=allow-oom
-- Begin a new generation of request records and tombstones and drop the oldest, unless somebody else just did.
--
-- KEYS[1] head       hash: the partition's fence
-- KEYS[2] records_0  hash: request records, first generation; KEYS[3], KEYS[4] the others
-- KEYS[5] tombstones_0  hash: tombstones, first generation; KEYS[6], KEYS[7] the others
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] age_ms           integer >= 1, how long a generation is filled at least
--
-- Returns one of
--   {"done", generation, number, rotated}  rotated is 1 or, where it was too early, 0
--   {"fenced", why}
--   {"corrupt", what}
-- @include head
-- @include records

local memory = { KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local age_ms = tonumber(ARGV[3])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
local since_ms = whole(redis.call("HGET", KEYS[1], "records_since_ms"))
if not since_ms then return { "corrupt", "head" } end
if now_ms() - since_ms < age_ms then return { "done", head.generation, head.number, 0 } end

head.records = head.records + 1
local oldest = { current_records(head, memory), current_tombstones(head, memory) }
-- From here on it must succeed.
redis.call("UNLINK", unpack(oldest))
for _, key in ipairs(oldest) do redis.call("HSET", key, "-", "") end
redis.call("HSET", KEYS[1], "records", int(head.records), "records_since_ms", int(now_ms()))
return { "done", head.generation, head.number, 1 }
