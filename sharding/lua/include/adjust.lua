-- Restock and remove: units come in from outside or leave for it, once per request id. `sign` is 1 or -1.
--
-- Returns what the two scripts return.
local function adjust(kind, sign)
  local memory = { KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
  local events_key = KEYS[3]
  local product, layout, cap = ARGV[3], ARGV[4], ARGV[5]
  local request_id, quantity, reason, actor = ARGV[6], ARGV[7], ARGV[8], ARGV[9]

  local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
  if not head then return refusal end
  local field = product .. ":" .. request_id
  local found
  found, refusal = find_records(head, memory, { field })
  if not found then return refusal end
  local stock
  stock, refusal = read_stock(KEYS[2])
  if not stock then return refusal end

  local same = string.sub(kind, 1, 3) .. quantity .. ":"
  local function answer(status)
    return { "done", head.generation, head.number, stock.available, status, stock.state }
  end
  if found[1] then
    if string.sub(found[1], 1, #same) ~= same then return answer("M") end
    touch(head)
    return answer("R")
  end
  if stock.state ~= "open" then return answer("F") end
  if not stock.serves or stock.layout ~= tonumber(layout) then return answer("S") end
  if is_full(current_records(head, memory), 1, cap) then return answer("O") end
  local delta = sign * quantity
  if stock.available + delta < 0 then return answer("I") end

  stock.available = stock.available + delta
  stock.loaded = stock.loaded + delta
  stock.moves = stock.moves + 1
  refusal = append(events_key, head, shard_event(kind, product, stock, "request", request_id,
    "quantity", quantity, "reason", reason, "actor", actor))
  if refusal then return refusal end
  -- From here on it must succeed.
  write_counts(stock)
  redis.call("HSET", current_records(head, memory), field, same .. int(stock.available))
  return answer("D")
end
