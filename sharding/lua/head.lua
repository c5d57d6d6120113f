#!lua flags=no-writes
-- Read a partition's head and say whether the partition is open here.
--
-- KEYS[1] head      hash: the partition's fence
-- KEYS[2] events_0  stream of the first ledger; KEYS[3] … those of the others
--
-- ARGV[1] backlog_max  integer, events that may wait for the ledger
--
-- Returns {why, generation, number, partitions, ledgers, degraded, last, applied, is_behind, …}; why is "" where the
--   partition is open, else "NO_HEAD", "NEW_OWNER", "RESTARTED" (the node has, since it was opened), "RESTORING",
--   "EVENTS_AHEAD" (an entry stands above the head's number) or "CORRUPT"; ledgers: how many it was opened for;
--   degraded: 1 where nobody waits for a replica (it has none); then of each ledger, and of none where there is no head,
--   last: the id of the newest entry of its stream, "0-0" without one;
--   applied: number up to which it is known to have all of its events, -1: nobody has said so yet;
--   is_behind: 1 while nothing of its products may be taken because too many events wait for it
-- @include head

local function nothing(why) return { why, 0, 0, 0, 0, 0 } end

local fields = { "owner", "generation", "number", "partitions", "ledgers", "degraded", "run" }
for i = 2, #KEYS do
  fields[#fields + 1] = of_ledger("applied", KEYS[i])
  fields[#fields + 1] = of_ledger("behind", KEYS[i])
end
local values = redis.pcall("HMGET", KEYS[1], unpack(fields))
if values.err then return nothing("CORRUPT") end
if not values[1] then return nothing("NO_HEAD") end
local generation, number, partitions = whole(values[2]), whole(values[3]), whole(values[4])
local ledgers = whole(values[5] or "1") -- of a head that was opened before there could be several
if not (generation and number and partitions and ledgers) then return nothing("CORRUPT") end

local degraded = is_degraded(values[6], generation) and 1 or 0
local answer, trouble = { "", generation, number, partitions, ledgers, degraded }, ""
for i = 2, #KEYS do
  local applied, behind = values[2 * i + 4], values[2 * i + 5]
  local head = { number = number, applied = whole(applied), behind = behind == "1" }
  if applied and not head.applied then return nothing("CORRUPT") end
  local newest, last = redis.pcall("XREVRANGE", KEYS[i], "+", "-", "COUNT", "1"), "0-0"
  if newest.err then
    trouble = "CORRUPT"
  elseif newest[1] then
    last = newest[1][1]
    local at_generation, at_number = string.match(last, "^(%d+)-(%d+)$")
    at_generation, at_number = tonumber(at_generation), tonumber(at_number)
    local is_ahead = at_generation > generation or (at_generation == generation and at_number > number)
    if is_ahead and trouble == "" then trouble = "EVENTS_AHEAD" end
  end
  answer[#answer + 1] = last
  answer[#answer + 1] = head.applied or -1
  answer[#answer + 1] = is_behind(head, tonumber(ARGV[1])) and 1 or 0
end
answer[1] = shut_here(values[1], values[7])
if answer[1] == "" then answer[1] = trouble end
return answer
