#!lua flags=no-writes
-- Read a partition's head and say whether the partition is open here.
--
-- KEYS[1] head      hash: the partition's fence
-- KEYS[2] events_0  stream of the first ledger; KEYS[3] … those of the others
--
-- Returns {why, generation, number, partitions, ledgers, last, …}; why is "" where the partition is open,
--   else "NO_HEAD", "NEW_OWNER", "EVENTS_AHEAD" (an entry stands above the head's number) or "CORRUPT"; a
--   last for each stream: the id of its newest entry, "0-0" without one; none where there is no head
-- @include head

local values = redis.pcall("HMGET", KEYS[1], "owner", "generation", "number", "partitions", "ledgers")
if values.err then return { "CORRUPT", 0, 0, 0, 0 } end
if not values[1] then return { "NO_HEAD", 0, 0, 0, 0 } end
local generation, number, partitions = whole(values[2]), whole(values[3]), whole(values[4])
local ledgers = whole(values[5] or "1") -- of a head that was opened before there could be several
if not (generation and number and partitions and ledgers) then return { "CORRUPT", 0, 0, 0, 0 } end

local trouble, lasts = "", {}
for i = 2, #KEYS do
  local newest = redis.pcall("XREVRANGE", KEYS[i], "+", "-", "COUNT", "1")
  if newest.err then
    trouble, lasts[i - 1] = "CORRUPT", "0-0"
  elseif newest[1] then
    lasts[i - 1] = newest[1][1]
    local at_generation, at_number = string.match(newest[1][1], "^(%d+)-(%d+)$")
    at_generation, at_number = tonumber(at_generation), tonumber(at_number)
    local is_ahead = at_generation > generation or (at_generation == generation and at_number > number)
    if is_ahead and trouble == "" then trouble = "EVENTS_AHEAD" end
  else
    lasts[i - 1] = "0-0"
  end
end
local function answer(why) return { why, generation, number, partitions, ledgers, unpack(lasts) } end

if values[1] ~= redis.call("CLUSTER", "MYID") then return answer("NEW_OWNER") end
return answer(trouble)
