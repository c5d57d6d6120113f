#!lua flags=allow-oom
-- Say in a partition that is being restored how many units users have of a product with a limit.
--
-- KEYS[1] head     hash: the partition's fence
-- KEYS[2] users    hash: units that users have of this product
--
-- ARGV[1] attempt  integer >= 1, the generation that this attempt was issued
-- ARGV[2] users    packed flat list of users and units
--
-- Returns one of
--   {"done"}
--   {"passed"}         another attempt has begun, or this one has ended
--   {"corrupt", what}
-- @include head
-- @include restoring

local users_key, attempt, users = KEYS[2], ARGV[1], cmsgpack.unpack(ARGV[2])

local head, refusal = read_restoring(KEYS[1], attempt)
if not head then return refusal end
-- From here on it must succeed.
if #users > 0 then redis.call("HSET", users_key, unpack(users)) end
return { "done" }
