-- What a partition remembers of requests: `<product>:<request_id>` to one of
--   d<quantity>:<user>:<available after it>:<shard>   units were taken
--   h, c, f in place of the d                 of an order's line, whose place stands for the shard: its units
--                                             are held; were sold after that; came back
--   i<quantity>:<user>:                       refused for good
--   n                                         never came, and never will take anything
--   b                                         may take nothing here; its home knows what became of it
--   res<quantity>:…, rem<quantity>:…          a restock, a removal
-- and `order <order_id>` to the record or tombstone of an order, see include/orders.lua. Records are what
-- stock bounds the number of: of what was taken, corrections and orders. The others are tombstones, which
-- nothing bounds but a cap; they have hashes of their own. Both are looked up in every generation and
-- written to the newest. `memory` is the keys of the records' three generations and the tombstones' three.
local RECORD_GENERATIONS = 3

local function current_records(head, memory)
  return memory[head.records % RECORD_GENERATIONS + 1]
end

local function current_tombstones(head, memory)
  return memory[RECORD_GENERATIONS + head.records % RECORD_GENERATIONS + 1]
end

-- Values by position in `fields`, or nil and the refusal. Of several values the newest counts, and a record
-- more than a tombstone. A hash with its sentinel only is skipped.
local function find_records(head, memory, fields)
  local found = {}
  if #fields == 0 then return found end
  for first = RECORD_GENERATIONS, 0, -RECORD_GENERATIONS do
    for age = 1, RECORD_GENERATIONS do
      local key = memory[first + (head.records + age) % RECORD_GENERATIONS + 1]
      local length = redis.pcall("HLEN", key)
      if type(length) ~= "number" then return nil, { "corrupt", "records" } end
      if length > 1 then
        for position, value in ipairs(redis.call("HMGET", key, unpack(fields))) do
          if value then found[position] = value end
        end
      end
    end
  end
  return found
end

local function is_full(key, added, cap)
  return redis.call("HLEN", key) + added > tonumber(cap)
end
