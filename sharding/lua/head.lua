#!lua flags=no-writes
-- Read a partition's head and say whether the partition is open here.
--
-- KEYS[1] head      hash: the partition's fence
-- KEYS[2] events_0  stream of the first ledger; KEYS[3] … those of the others
--
-- ARGV[1] backlog_max  integer, events that may wait for the ledger
--
-- Returns {why, generation, number, partitions, applied, is_behind}; why is "" where the partition is open, else
--   "NO_HEAD", "NEW_OWNER", "EVENTS_AHEAD" (an entry stands above the head's number) or "CORRUPT";
--   applied: number of the last event that the ledger is known to have, -1: nobody has said so yet;
--   is_behind: 1 while nothing may be taken because too many events wait for the ledger
-- @include head

local values = redis.pcall("HMGET", KEYS[1], "owner", "generation", "number", "partitions", "applied", "behind")
if values.err then return { "CORRUPT", 0, 0, 0, -1, 0 } end
if not values[1] then return { "NO_HEAD", 0, 0, 0, -1, 0 } end
local generation, number, partitions = whole(values[2]), whole(values[3]), whole(values[4])
if not (generation and number and partitions) then return { "CORRUPT", 0, 0, 0, -1, 0 } end
local head = { number = number, applied = whole(values[5]), behind = values[6] == "1" }
if values[5] and not head.applied then return { "CORRUPT", 0, 0, 0, -1, 0 } end
local behind = is_behind(head, tonumber(ARGV[1])) and 1 or 0
local function answer(why) return { why, generation, number, partitions, head.applied or -1, behind } end

if values[1] ~= redis.call("CLUSTER", "MYID") then return answer("NEW_OWNER") end
for i = 2, #KEYS do
  local newest = redis.pcall("XREVRANGE", KEYS[i], "+", "-", "COUNT", "1")
  if newest.err then return answer("CORRUPT") end
  if newest[1] then
    local at_generation, at_number = string.match(newest[1][1], "^(%d+)-(%d+)$")
    at_generation, at_number = tonumber(at_generation), tonumber(at_number)
    if at_generation > generation or (at_generation == generation and at_number > number) then
      return answer("EVENTS_AHEAD")
    end
  end
end
return answer("")
