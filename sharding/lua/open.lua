#!lua flags=allow-oom
-- Open a partition on the node that has it now: create one that was never used, or accept one whose head
-- and streams contain everything that the ledger has. Anything else is refused and changes nothing.
--
-- KEYS[1] head       hash: the partition's fence
-- KEYS[2] records_0  hash: request records, first generation; KEYS[3], KEYS[4] the others
-- KEYS[5] tombstones_0  hash: tombstones, first generation; KEYS[6], KEYS[7] the others
-- KEYS[8] deadlines  sorted set: orders by the time at which somebody has to look at them
-- KEYS[9] events_0   stream of the first ledger; KEYS[10], KEYS[11] … those of the others
--
-- ARGV[1] partitions   integer >= 1, the cluster's partition count
-- ARGV[2] opening      integer >= 1, the generation that this opening was issued
-- ARGV[3] degraded     1: the node has no replica, and what happens in this generation waits for none; else 0
-- ARGV[4] judged       generation of the head by which it was judged whether the node has a replica; empty: of any
-- ARGV[5] checkpoint   "<generation>-<number>" that the first ledger has applied, "0-0" for nothing
-- ARGV[6] anchor       what the entry at that checkpoint is recognised by, see sharding/events.py
-- ARGV[7], ARGV[8] …   the same for the other ledgers
--
-- Returns one of
--   {"done", generation, number}
--   {"passed", generation}  it was opened under this number elsewhere, under a later one, or since it was judged
--   {"partitions", count}   the cluster was set up with another partition count
--   {"ledgers", count}      the cluster was set up with another number of ledgers
--   {"behind", found, number}      the head is behind a checkpoint
--   {"anchor", found, checkpoint}  the entry at a checkpoint is not in the stream, or is another one
--   {"half", found}                it was being restored, and that did not come to its end
--   {"no_head", found}             the ledger knows events of this partition, but it has no head
--   {"corrupt", what}
--   found: what shut.lua goes by, see opened_by in include/head.lua
-- @include head
-- @include partition

local head_key, partitions, opening = KEYS[1], ARGV[1], tonumber(ARGV[2])
local degraded, judged = ARGV[3] == "1", ARGV[4]
local FIRST_CHECKPOINT = 5
local ledgers = #KEYS - FIRST_STREAM + 1

local refusal = wrong_type(head_key, "hash", "head")
for i = 2, 7 do refusal = refusal or wrong_type(KEYS[i], "hash", "records") end
refusal = refusal or wrong_type(KEYS[8], "zset", "deadlines")
for i = FIRST_STREAM, #KEYS do refusal = refusal or wrong_type(KEYS[i], "stream", "events") end
if refusal then return refusal end

local is_new = redis.call("EXISTS", head_key) == 0
local head = { key = head_key, generation = 0, number = 0 }
local found = opened_by()
if not is_new then
  local values = redis.call("HMGET", head_key, "generation", "number", "partitions", "owner", "ledgers", "run")
  head.generation, head.number = whole(values[1]), whole(values[2])
  if not (head.generation and head.number) then return { "corrupt", "head" } end
  found = opened_by(values[1], values[4])
  if values[4] == "" then return { "half", found } end
  if values[3] ~= partitions then return { "partitions", tonumber(values[3]) or 0 } end
  if values[5] and values[5] ~= int(ledgers) then return { "ledgers", tonumber(values[5]) or 0 } end
  if not values[5] and ledgers > 1 then return { "ledgers", 1 } end -- opened before there could be several
  -- A repeat, because the answer was lost: what was opened once under this number stays as it is.
  if head.generation == opening and shut_here(values[4], values[6]) == "" then
    redis.call("HINCRBY", head_key, "touches", 1)
    return { "done", head.generation, head.number }
  end
  -- Whoever was stopped between its number and this call would open under one that nobody has issued; and whoever
  -- was stopped before its number, without the replica that is back since.
  local is_judged_anew = judged ~= "" and values[1] ~= judged
  if head.generation >= opening or is_judged_anew then return { "passed", head.generation } end
end

-- An entry that somebody added by hand may stand above the head: later events must pass it.
local generation, number = head.generation, head.number
for i = FIRST_STREAM, #KEYS do
  local last_generation, last_number = last_entry(KEYS[i])
  if not (last_generation and last_number) then return { "corrupt", "events" } end
  generation, number = math.max(generation, last_generation), math.max(number, last_number)
end

for i = FIRST_STREAM, #KEYS do
  local at = FIRST_CHECKPOINT + 2 * (i - FIRST_STREAM)
  local checkpoint, anchor = ARGV[at], ARGV[at + 1]
  if checkpoint ~= "0-0" then
    if is_new then return { "no_head", found } end
    local at_number = tonumber(string.match(checkpoint, "-(%d+)$"))
    if at_number > number then return { "behind", found, number } end
    local entry = redis.call("XRANGE", KEYS[i], checkpoint, checkpoint)[1]
    if not entry or redis.sha1hex(table.concat(entry[2], "\0")) ~= anchor then
      return { "anchor", found, checkpoint }
    end
  end
end

-- A failover may have lost an opening: the issued one is above that, too.
head.generation = math.max(generation + 1, opening)
local owner = redis.call("CLUSTER", "MYID")
head.number = number + 1
local id = int(head.generation) .. "-" .. int(head.number)
-- From here on it must succeed.
for i = FIRST_STREAM, #KEYS do
  redis.call("XADD", KEYS[i], id, "v", "1", "at", int(now_ms()), "kind", "opened", "owner", owner)
end
redis.call("HSET", head_key, "owner", owner, "run", RUN, "generation", int(head.generation), "number",
  int(head.number), "partitions", partitions, "degraded", degraded and int(head.generation) or "0")
redis.call("HSETNX", head_key, "ledgers", int(ledgers))
redis.call("HSETNX", head_key, "records", "0")
redis.call("HSETNX", head_key, "records_since_ms", int(now_ms()))
keep_sentinels()
return { "done", head.generation, head.number }
