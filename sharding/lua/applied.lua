#!lua flags=allow-oom
-- Note how far a ledger has come with a partition's events, and whether it is behind; never goes back.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] events  stream of the ledger
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] applied          integer >= 0, number up to which the ledger has all of its events
-- ARGV[4] backlog_max      integer, events that may wait for the ledger
--
-- Returns one of
--   {"done", generation, number}
--   {"fenced", why}
--   {"corrupt", what}
-- @include head

local applied, backlog_max = tonumber(ARGV[3]), tonumber(ARGV[4])

local events_key = KEYS[2]

local head, refusal = read_head(KEYS[1], ARGV[1], ARGV[2], events_key)
if not head then return refusal end
-- What counts is whether callers were refused until now.
head.behind = is_behind(head, backlog_max)
head.applied = math.max(head.applied or 0, applied)
-- From here on it must succeed.
redis.call("HSET", KEYS[1], of_ledger("applied", events_key), int(head.applied),
  of_ledger("behind", events_key), is_behind(head, backlog_max) and "1" or "0")
return { "done", head.generation, head.number }
