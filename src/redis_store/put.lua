-- Writes ARGV[1] to KEYS[1], unless the stored value is as new or newer. A value begins with its version, slot and
-- request time, all of fixed length, so that they compare as text.
-- ARGV: value, request time (µs of this clock), lifetime (µs), lower bound of this clock's time (µs).
local rank, head = 44, 4
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
-- This clock is behind the one that the writer used, so the value would seem younger than it is.
if now < tonumber(ARGV[4]) then return 'older' end
local left = math.floor((tonumber(ARGV[2]) + tonumber(ARGV[3]) - now) / 1000)
if left < 1 then return 'older' end
local stored = redis.pcall('GETRANGE', KEYS[1], 0, rank - 1)
if type(stored) == 'string' and #stored == rank and string.sub(stored, 1, head) == string.sub(ARGV[1], 1, head)
  and stored >= string.sub(ARGV[1], 1, rank) then
  return 'older'
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', left)
return 'ok'
