-- A partition that is being restored has no owner, so no other script obeys it, and the generation of the one
-- attempt that may write to it, in the run of the node that it has begun in: another one may lack a part.

-- The head's number, or nil and the refusal.
local function read_restoring(key, attempt)
  local values = redis.pcall("HMGET", key, "owner", "generation", "number", "records", "relived", "run")
  if values.err then return nil, { "corrupt", "head" } end
  if values[1] ~= "" or values[2] ~= attempt or values[6] ~= RUN then return nil, { "passed" } end
  local number, records = whole(values[3]), whole(values[4])
  if not (number and records) then return nil, { "corrupt", "head" } end
  return { key = key, number = number, records = records, relived = whole(values[5]) or 0 }
end
