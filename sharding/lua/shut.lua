#!lua flags=allow-oom
-- Shut a partition for everybody but one attempt to restore it from the ledger. Whoever began earlier writes nothing
-- to it from here on. A repeat that was held up changes nothing of what the attempt has written since.
--
-- KEYS[1] head       hash: the partition's fence
-- KEYS[2] records_0  hash: request records, first generation; KEYS[3], KEYS[4] the others
-- KEYS[5] tombstones_0  hash: tombstones, first generation; KEYS[6], KEYS[7] the others
-- KEYS[8] deadlines  sorted set: orders by the time at which somebody has to look at them
-- KEYS[9] events_0   stream of the first ledger; KEYS[10], KEYS[11] … those of the others
--
-- ARGV[1] partitions  integer >= 1, the cluster's partition count
-- ARGV[2] attempt     integer >= 1, the generation that this attempt was issued
-- ARGV[3] number      integer >= 0, events that anybody knows of
-- ARGV[4] forgets     1: what the partition remembers is not the ledger's past, and goes; 0: it stays
-- ARGV[5] degraded    1: the node has no replica, and what happens in this generation waits for none; else 0
-- ARGV[6] found       what open.lua has found when it refused; another one has opened it since, or begun to restore it,
--                     where that is not so any more
--
-- Returns one of
--   {"done", owner, number, known}  owner: the node's id; number: the greatest that anybody knows of;
--       known: the greatest that this node knew of
--   {"passed"}         another attempt has begun or opened it since, or this one has ended
--   {"corrupt", what}
-- @include head
-- @include partition

local head_key, partitions, attempt = KEYS[1], ARGV[1], ARGV[2]
local seen, forgets, degraded = tonumber(ARGV[3]), ARGV[4] == "1", ARGV[5] == "1"
local refusal = wrong_type(head_key, "hash", "head")
if refusal then return refusal end
local values = redis.call("HMGET", head_key, "generation", "number", "owner", "forgot", "run")
local generation, known = whole(values[1] or "0") or 0, whole(values[2] or "0") or 0
if generation > tonumber(attempt) then return { "passed" } end
local is_repeat = generation == tonumber(attempt)
if is_repeat and (values[3] ~= "" or values[5] ~= RUN) then return { "passed" } end
if not is_repeat and opened_by(values[1], values[3]) ~= ARGV[6] then return { "passed" } end
for i = FIRST_STREAM, #KEYS do
  local _, last = last_entry(KEYS[i])
  known = math.max(known, last or 0)
end
local number = math.max(known, seen)
-- From here on it must succeed.
redis.call("HSET", head_key, "owner", "", "run", RUN, "generation", attempt, "number", int(number), "partitions", partitions,
  "ledgers", int(#KEYS - FIRST_STREAM + 1), "degraded", degraded and attempt or "0")
redis.call("HSETNX", head_key, "records", "0")
redis.call("HSETNX", head_key, "records_since_ms", int(now_ms()))
if not is_repeat then redis.call("HSET", head_key, "relived", "0") end
if forgets and values[4] ~= attempt then
  redis.call("UNLINK", unpack(KEYS, 2))
  redis.call("HSET", head_key, "forgot", attempt)
end
keep_sentinels()
return { "done", redis.call("CLUSTER", "MYID"), number, known }
