-- What a partition consists of besides its head and its shards. KEYS[2] … KEYS[7] are the hashes of its records and
-- tombstones, KEYS[8] the sorted set of its deadlines, and from FIRST_STREAM on the streams of its events.
local FIRST_STREAM = 9

-- Generation and number of the last entry that a stream ever had; zeros where there is none, nil where no
-- script has added it.
local function last_entry(key)
  if redis.call("TYPE", key).ok ~= "stream" then return 0, 0 end
  local info = redis.call("XINFO", "STREAM", key)
  for i = 1, #info, 2 do
    if info[i] == "last-generated-id" then
      local generation, number = string.match(info[i + 1], "^(%d+)-(%d+)$")
      return whole(generation), whole(number)
    end
  end
end

-- The sentinels: a key that exists is never created in the middle of a slot's migration.
local function keep_sentinels()
  for i = 2, FIRST_STREAM - 2 do redis.call("HSETNX", KEYS[i], "-", "") end
  redis.call("ZADD", KEYS[FIRST_STREAM - 1], "NX", "+inf", "-")
end
