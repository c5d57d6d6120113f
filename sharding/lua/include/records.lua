-- Request records: `<product>:<request_id>` to `<letter><quantity>:<user>:<available after it>`.
-- They are looked up in every generation and written to the newest.
local RECORD_GENERATIONS = 3

local function current_records(head, record_keys)
  return record_keys[head.records % RECORD_GENERATIONS + 1]
end

-- Values by position in `fields`, or nil and the refusal. A generation with its sentinel only is skipped.
local function find_records(record_keys, fields)
  local found = {}
  if #fields == 0 then return found end
  for _, key in ipairs(record_keys) do
    local length = redis.pcall("HLEN", key)
    if type(length) ~= "number" then return nil, { "corrupt", "records" } end
    if length > 1 then
      for position, value in ipairs(redis.call("HMGET", key, unpack(fields))) do
        if value then found[position] = value end
      end
    end
  end
  return found
end

local function records_are_full(head, record_keys, added, cap)
  return redis.call("HLEN", current_records(head, record_keys)) + added > cap
end
