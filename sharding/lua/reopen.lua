#!lua flags=allow-oom
-- Open a partition that was restored, with the event that the ledgers have noted as their last one of it.
--
-- KEYS[1] head      hash: the partition's fence
-- KEYS[2] events_0  stream of the first ledger; KEYS[3] … those of the others
--
-- ARGV[1] attempt   integer >= 1, the generation that this attempt was issued
-- ARGV[2] number    integer >= 1, the event's number
-- ARGV[3] owner     the node that the attempt found
-- ARGV[4] event     packed flat list of names and values
--
-- Returns one of
--   {"done", generation, number}
--   {"passed"}         another attempt has begun, another node has the partition, or this one has been restarted
--   {"corrupt", what}
-- @include head
-- @include restoring

local attempt, number, owner, event = ARGV[1], ARGV[2], ARGV[3], cmsgpack.unpack(ARGV[4])

if owner ~= redis.call("CLUSTER", "MYID") then return { "passed" } end
local now = redis.pcall("HMGET", KEYS[1], "owner", "generation", "run")
if now.err then return { "corrupt", "head" } end
if now[1] == owner and now[2] == attempt and now[3] == RUN then
  redis.call("HINCRBY", KEYS[1], "touches", 1)
  return { "done", tonumber(attempt), tonumber(number) }
end
local head, refusal = read_restoring(KEYS[1], attempt)
if not head then return refusal end
for i = 2, #KEYS do
  local reply = redis.pcall("XADD", KEYS[i], attempt .. "-" .. number, unpack(event))
  if type(reply) == "table" and reply.err then return { "corrupt", "events" } end
end
-- From here on it must succeed.
redis.call("HSET", KEYS[1], "owner", owner, "number", number)
for i = 2, #KEYS do
  redis.call("HSET", KEYS[1], of_ledger("applied", KEYS[i]), number, of_ledger("behind", KEYS[i]), "0")
end
return { "done", tonumber(attempt), tonumber(number) }
