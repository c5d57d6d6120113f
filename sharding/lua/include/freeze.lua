-- What a shard that is told of a decision to stop or to resume the sale is to keep: that, or a later one that it
-- knows. Returns the version and the flag.
local function latest_freeze(key, version, frozen)
  local known = redis.call("HMGET", key, "freeze", "frozen")
  local known_version = whole(known[1] or "0") or 0
  if known_version > tonumber(version) then return known[1], known[2] end
  return version, frozen
end
