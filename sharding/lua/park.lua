#!lua flags=allow-oom
-- Put orders aside that cannot be carried on now, or that nobody can make sense of: they are not looked at
-- again until later, or never.
--
-- KEYS[1] head       hash: the partition's fence
-- KEYS[2] deadlines  sorted set: orders by the time at which somebody has to look at them
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] pause_ms         integer, how long they rest; 0: for ever
-- ARGV[4] orders           packed list of order ids
--
-- Returns one of
--   {"done", generation, number}
--   {"fenced", why}
--   {"corrupt", what}
-- @include head

local deadlines_key, pause_ms, orders = KEYS[2], tonumber(ARGV[3]), cmsgpack.unpack(ARGV[4])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
refusal = wrong_type(deadlines_key, "zset", "deadlines")
if refusal then return refusal end
-- From here on it must succeed.
touch(head)
local until_ms = int(now_ms() + pause_ms)
for _, order_id in ipairs(orders) do
  if pause_ms == 0 then
    redis.call("ZREM", deadlines_key, order_id)
  else
    redis.call("ZADD", deadlines_key, "XX", until_ms, order_id)
  end
end
return { "done", head.generation, head.number }
