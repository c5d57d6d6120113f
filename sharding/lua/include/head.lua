-- The fence: a partition obeys only on the node that it was opened on, and only while its event number
-- has not gone back behind what the caller has seen. A promoted, emptied or rolled-back node fails this.
--
-- Fields of a head: owner, generation, number, partitions, ledgers, records, records_since_ms, touches.

local function int(number)
  return string.format("%.0f", number)
end

local function whole(text)
  if type(text) == "string" and #text <= 15 and string.find(text, "^%d+$") then
    return tonumber(text)
  end
  return nil
end

-- A count that may be below zero.
local function signed(text)
  if type(text) == "string" and string.sub(text, 1, 1) == "-" then
    local magnitude = whole(string.sub(text, 2))
    return magnitude and -magnitude
  end
  return whole(text)
end

-- The refusal if a key is there and is of another type.
local function wrong_type(key, expected, what)
  local found = redis.call("TYPE", key).ok
  if found ~= expected and found ~= "none" then return { "corrupt", what } end
  return nil
end

local function now_ms()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The head as a table, or nil and the refusal.
local function read_head(key, seen_generation, seen_number)
  local values = redis.pcall("HMGET", key, "owner", "generation", "number", "records")
  if values.err then return nil, { "corrupt", "head" } end
  if not values[1] then return nil, { "fenced", "NO_HEAD" } end
  if values[1] ~= redis.call("CLUSTER", "MYID") then return nil, { "fenced", "NEW_OWNER" } end
  local head = {
    key = key,
    generation = whole(values[2]),
    number = whole(values[3]),
    records = whole(values[4]),
  }
  if not (head.generation and head.number and head.records) then return nil, { "corrupt", "head" } end
  seen_generation, seen_number = tonumber(seen_generation), tonumber(seen_number)
  if head.generation < seen_generation
    or (head.generation == seen_generation and head.number < seen_number) then
    return nil, { "fenced", "WENT_BACK" }
  end
  return head
end

-- A write without a meaning: WAIT covers only what its own connection wrote, so a call that repeats an
-- earlier one's answer must write, too, before it may say that a replica has it.
local function touch(head)
  redis.call("HINCRBY", head.key, "touches", 1)
end
