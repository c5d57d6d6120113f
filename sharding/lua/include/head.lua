-- The fence: a partition obeys only on the node that it was opened on, only in the run of it that it was opened in,
-- and only while its event number has not gone back behind what the caller has seen. A promoted, emptied or rolled-back
-- node fails this, and so does one that came back by itself: what it has read from its disk may be older.
--
-- The last argument of every call is the run of the node at the other end of the caller's connection; the lane adds it.
--
-- Fields of a head: owner (empty while the partition is restored from the ledger), run, generation, number, partitions,
--   ledgers, records, records_since_ms, touches, and
--   forgot    the attempt to restore it that has removed its records and streams
--   relived   how many pieces of what it is to remember an attempt has given it
--   degraded  the generation that was opened on a node without a replica: what happens in it waits for none
--   applied   number up to which the ledger is known to have all of its events; missing: nobody has said so yet
--   behind    1: the ledger was behind by the limit and has not caught up by half of it since
-- of the first ledger, and applied:1, behind:1 … of the others.

local RUN = ARGV[#ARGV]

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

-- By which opening a partition is as it is, or by which attempt to restore it: what another one changes.
local function opened_by(generation, owner)
  return (generation or "") .. " " .. (owner or "")
end

-- Why a partition is not open here, "" where it is, by its head's owner and run.
local function shut_here(owner, run)
  if owner == "" then return "RESTORING" end
  if owner ~= redis.call("CLUSTER", "MYID") then return "NEW_OWNER" end
  return run == RUN and "" or "RESTARTED"
end

-- Whether a partition is open under a generation in which nobody waits for a replica. A later one ends it.
local function is_degraded(degraded, generation)
  return whole(degraded) == generation
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

-- The name of a field that a head has for the ledger of each stream.
local function of_ledger(field, events_key)
  local ledger = string.match(events_key, ":(%d+)$")
  if ledger == "0" then return field end
  return field .. ":" .. ledger
end

-- The head as a table, or nil and the refusal. How far the ledger is, is said of that of one stream.
local function read_head(key, seen_generation, seen_number, events_key)
  local applied, behind = "applied", "behind"
  if events_key then applied, behind = of_ledger(applied, events_key), of_ledger(behind, events_key) end
  local values = redis.pcall("HMGET", key, "owner", "generation", "number", "records", applied, behind, "run")
  if values.err then return nil, { "corrupt", "head" } end
  if not values[1] then return nil, { "fenced", "NO_HEAD" } end
  local shut = shut_here(values[1], values[7])
  if shut ~= "" then return nil, { "fenced", shut } end
  local head = {
    key = key,
    generation = whole(values[2]),
    number = whole(values[3]),
    records = whole(values[4]),
    applied = whole(values[5]),
    behind = values[6] == "1",
  }
  if not (head.generation and head.number and head.records) or (values[5] and not head.applied) then
    return nil, { "corrupt", "head" }
  end
  seen_generation, seen_number = tonumber(seen_generation), tonumber(seen_number)
  if head.generation < seen_generation
    or (head.generation == seen_generation and head.number < seen_number) then
    return nil, { "fenced", "WENT_BACK" }
  end
  return head
end

-- Whether so many events wait for the ledger that nothing may be taken: from the limit on, until half of it
-- is left.
local function is_behind(head, backlog_max)
  if not head.applied then return false end
  local backlog = head.number - head.applied
  return backlog >= backlog_max or (head.behind and 2 * backlog > backlog_max)
end

-- A write without a meaning: WAIT covers only what its own connection wrote, so a call that repeats an
-- earlier one's answer must write, too, before it may say that a replica has it.
local function touch(head)
  redis.call("HINCRBY", head.key, "touches", 1)
end
