-- Append the event of this call and raise the head's number. The first write of every script: where it
-- fails nothing was changed, and the refusal is returned.
local function append(events_key, head, fields)
  head.number = head.number + 1
  local id = int(head.generation) .. "-" .. int(head.number)
  local reply = redis.pcall("XADD", events_key, id, "v", "1", "at", int(now_ms()), unpack(fields))
  if type(reply) == "table" and reply.err then
    if string.find(reply.err, "WRONGTYPE", 1, true) then return { "corrupt", "events" } end
    if string.find(reply.err, "equal or smaller", 1, true) then return { "fenced", "EVENTS_AHEAD" } end
    return reply
  end
  redis.call("HSET", head.key, "number", int(head.number))
  return nil
end
