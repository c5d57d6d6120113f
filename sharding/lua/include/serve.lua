-- Decide a list of requests against one shard and say what has to be written for them. Changes
-- `stock` but no key. In order of precedence a request is
--   R replayed, M mismatch, F frozen, S stale, O overloaded, I insufficient, D deducted.
--
-- `requests` is flat: request_id, quantity, user_id, order_id, and so on.
-- Returns a table of statuses (one string), firsts (what was left after the first copy of each R),
-- writes (flat list of record fields and values), sold (units); or nil and the refusal.
local function serve(requests, product, layout, cap, stock, head, record_keys)
  local count = #requests / 4
  local fields = {}
  for i = 1, count do fields[i] = product .. ":" .. requests[4 * i - 3] end
  local found, refusal = find_records(record_keys, fields)
  if not found then return nil, refusal end

  local closed_to_new
  if stock.frozen or stock.state ~= "open" then
    closed_to_new = "F"
  elseif stock.layout ~= tonumber(layout) then
    closed_to_new = "S"
  elseif records_are_full(head, record_keys, count, tonumber(cap)) then
    closed_to_new = "O"
  end

  local statuses, firsts, writes, accepted, sold = {}, {}, {}, {}, 0
  for i = 1, count do
    local quantity = requests[4 * i - 2]
    assert(quantity >= 1 and quantity == math.floor(quantity), "quantity")
    local same = "d" .. int(quantity) .. ":" .. requests[4 * i - 1] .. ":"
    local record = found[i] or accepted[fields[i]]
    if record then
      if string.sub(record, 1, #same) == same then
        statuses[i] = "R"
        firsts[#firsts + 1] = string.sub(record, #same + 1)
      else
        statuses[i] = "M"
      end
    elseif closed_to_new then
      statuses[i] = closed_to_new
    elseif quantity > stock.available then
      statuses[i] = "I"
    else
      statuses[i] = "D"
      stock.available = stock.available - quantity
      stock.sold = stock.sold + quantity
      sold = sold + quantity
      record = same .. int(stock.available)
      accepted[fields[i]] = record
      writes[#writes + 1] = fields[i]
      writes[#writes + 1] = record
    end
  end
  return { statuses = table.concat(statuses), firsts = firsts, writes = writes, sold = sold }
end
