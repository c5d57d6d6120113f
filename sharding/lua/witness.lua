#!lua flags=allow-oom
-- Leave word of the last event that a process has seen of a partition which is shut here, or was opened anew since;
-- never goes back.
--
-- KEYS[1] witness  string: the event's id, <generation>-<number>
--
-- ARGV[1] generation  integer >= 1
-- ARGV[2] number      integer >= 1
--
-- Returns {"done"}; what was no id is one from here on

local generation, number = tonumber(ARGV[1]), tonumber(ARGV[2])
local told = redis.pcall("GET", KEYS[1])
if type(told) == "string" then
  local told_generation, told_number = string.match(told, "^(%d+)-(%d+)$")
  told_generation, told_number = tonumber(told_generation), tonumber(told_number)
  if told_generation
    and (told_generation > generation or (told_generation == generation and told_number >= number)) then
    return { "done" }
  end
end
redis.call("SET", KEYS[1], ARGV[1] .. "-" .. ARGV[2])
return { "done" }
