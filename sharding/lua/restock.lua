#!lua
-- Add units that came in from outside to one shard, once per request id.
--
-- KEYS[1] head    hash: the partition's fence
-- KEYS[2] stock   hash: the shard
-- KEYS[3] events  stream that the worker drains into the ledger
-- KEYS[4] records_0  hash: request records, first generation; KEYS[5], KEYS[6] the others
-- KEYS[7] tombstones_0  hash: tombstones, first generation; KEYS[8], KEYS[9] the others
--
-- ARGV[1] seen_generation  integer >= 0
-- ARGV[2] seen_number      integer >= 0
-- ARGV[3] product          integer >= 1
-- ARGV[4] layout           integer >= 1, the layout that the caller routed by
-- ARGV[5] record_cap       integer, records that one generation may hold
-- ARGV[6] request_id       names the delivery
-- ARGV[7] quantity         integer >= 1
-- ARGV[8] reason           text for the journal, may be empty
--
-- Returns one of
--   {"done", generation, number, available, status, state}  status is one of R M F S O I D
--   {"fenced", why}
--   {"missing"}  no such key
--   {"corrupt", what}
-- @include head
-- @include events
-- @include stock
-- @include records
-- @include adjust

return adjust("restock", 1)
