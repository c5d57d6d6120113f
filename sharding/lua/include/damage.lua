-- One shard whatever became of its counts: one that is below zero stays as it is, one that is no number counts as
-- none, because nobody can take what it may have stood for.

local COUNTS = { "available", "held", "sold", "loaded" }

-- The shard as a table, or nil and the refusal. `damaged` names the counts that no script has written.
local function read_damaged_stock(key)
  local values = redis.pcall("HMGET", key, "moves", "layout", "epoch", "state", "repaired", unpack(COUNTS))
  if values.err then return nil, { "corrupt", "stock" } end
  if redis.call("EXISTS", key) == 0 then return nil, { "missing" } end
  local stock = { key = key, moves = whole(values[1]), layout = whole(values[2]), epoch = whole(values[3]),
    state = values[4], repaired = values[5] or "0 " }
  if not (stock.moves and stock.layout and stock.epoch and STATES[stock.state]) then
    return nil, { "corrupt", "stock" }
  end
  local damaged = {}
  for i, name in ipairs(COUNTS) do
    local text = values[5 + i]
    stock[name] = signed(text) or 0
    local is_sound = name == "loaded" and signed(text) or whole(text)
    if not is_sound then damaged[#damaged + 1] = name end
  end
  stock.damaged = table.concat(damaged, " ")
  return stock
end
