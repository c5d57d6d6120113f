#!lua flags=no-writes
-- Name orders of this partition that somebody has to look at now, the oldest first.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] records_0  hash: request records, first generation; KEYS[3], KEYS[4] the others
-- KEYS[5] tombstones_0  hash: tombstones, first generation; KEYS[6], KEYS[7] the others
-- KEYS[8] deadlines  sorted set: orders by the time at which somebody has to look at them
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] limit            integer >= 1, orders at most
--
-- Returns one of
--   {"done", generation, number, now_ms, orders}  flat: order_id, due_ms, record, and so on; the record is empty
--       where there is none
--   {"fenced", why}
--   {"corrupt", what}
-- @include head
-- @include records

local memory = { KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local deadlines_key, limit = KEYS[8], tonumber(ARGV[3])

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2])
if not head then return refusal end
refusal = wrong_type(deadlines_key, "zset", "deadlines")
if refusal then return refusal end
local now = now_ms()
local due = redis.call("ZRANGEBYSCORE", deadlines_key, "-inf", "(" .. int(now), "WITHSCORES", "LIMIT", 0, limit)
local fields = {}
for i = 1, #due, 2 do fields[#fields + 1] = "order " .. due[i] end
local found
found, refusal = find_records(head, memory, fields)
if not found then return refusal end
local orders = {}
for i = 1, #fields do
  orders[3 * i - 2] = due[2 * i - 1]
  orders[3 * i - 1] = due[2 * i]
  orders[3 * i] = found[i] or ""
end
return { "done", head.generation, head.number, now, orders }
