-- What a partition knows of a product.
--
-- Fields of a product_info hash; every shard's partition has one, the base partition's decides:
--   layout, shards   version of the layout in force, and how many shards it has
--   since_ms         when that was decided, or the product was loaded
--   next_layout      version of a layout that is on its way; 0 or missing: none. At the base only
--   next_shards      how many shards that layout has
--   given_up         the last version of a layout that will never be; 0 or missing: none. At the base only
--   epoch            which load of the product this is
--   earlier          shard counts that the product had before in this epoch, with spaces between them
--   former           all shard counts that it ever had and whose shards may know requests
--   buffer           units that the ledger kept back when the product was loaded; what of them came on sale
--                    since is `released` at the product's first shard
--   sold_before      units sold in earlier epochs
--   max_per_user     units that one user may hold and buy in this epoch; 0 or missing: no limit

-- The numbers that layouts are changed by, or nil and the refusal.
local function read_info(key)
  local values = redis.pcall("HMGET", key, "layout", "next_layout", "epoch", "given_up")
  if values.err then return nil, { "corrupt", "product_info" } end
  if redis.call("EXISTS", key) == 0 then return nil, { "missing" } end
  local info = { layout = whole(values[1]), next_layout = whole(values[2] or "0"), epoch = whole(values[3]),
    given_up = whole(values[4] or "0") }
  if not (info.layout and info.next_layout and info.epoch and info.given_up) then
    return nil, { "corrupt", "product_info" }
  end
  return info
end
