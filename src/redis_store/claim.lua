-- Returns the string at KEYS[1], at most ARGV[3] bytes of it. If there is none, stores the claim ARGV[1] for ARGV[2] ms
-- and returns "".
local value = redis.pcall('GETRANGE', KEYS[1], 0, tonumber(ARGV[3]) - 1)
if type(value) == 'string' and value ~= '' then return value end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ''
