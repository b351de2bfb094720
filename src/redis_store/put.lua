-- Keeps ARGV[1] at KEYS[1], unless what is held there is as new or newer, in one step.
-- A value begins with its version, its slot, and when it was asked for: all of fixed length, so that texts compare.
-- ARGV: value, when it was asked for (µs of this clock), how long it may live (µs), what this clock shows at least (µs).
local rank, head = 44, 4
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
-- This clock is behind the one that the writer went by: by this one, the value would seem younger than it is.
if now < tonumber(ARGV[4]) then return 'older' end
local left = math.floor((tonumber(ARGV[2]) + tonumber(ARGV[3]) - now) / 1000)
if left < 1 then return 'older' end
local held = redis.pcall('GETRANGE', KEYS[1], 0, rank - 1)
if type(held) == 'string' and #held == rank and string.sub(held, 1, head) == string.sub(ARGV[1], 1, head)
  and held >= string.sub(ARGV[1], 1, rank) then
  return 'older'
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', left)
return 'ok'
