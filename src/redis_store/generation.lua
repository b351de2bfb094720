-- Reads the generation of a cluster, and with ARGV[3] raises it. KEYS[1] holds the generation, and under it the newest
-- purges, a line each: the generation that the purge began, the one before it, and the purge.
-- ARGV: the highest generation that the gateway knows (0 if none), the lifetime in ms, the text of a purge.
local text = redis.pcall('GET', KEYS[1])
if type(text) ~= 'string' then text = '' end
local stored, purges = string.match(text, '^(%d+)\n(.*)$')
-- A generation begins at the time, so one that is days ahead is none that a purge has made, and could not be raised.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local function possible(n) return n and n < now + 86400000000 and n or 0 end
stored = possible(tonumber(stored))
local number = math.max(stored, possible(tonumber(ARGV[1])))
-- The store has lost this generation, so its purges do not lead here.
if number ~= stored or not purges then purges = '' end
local function digits(n) return string.format('%.0f', n) end
if number == 0 or ARGV[3] then
  -- The time makes it higher than any that a store without memory may have had before.
  local new = math.max(number + 1, now)
  if ARGV[3] then
    local lines = {digits(new) .. ' ' .. digits(number) .. ' ' .. ARGV[3]}
    for line in string.gmatch(purges, '[^\n]+') do
      if #lines == 64 then break end
      lines[#lines + 1] = line
    end
    purges = table.concat(lines, '\n')
  end
  number = new
end
if number ~= stored then
  redis.call('SET', KEYS[1], digits(number) .. '\n' .. purges, 'PX', ARGV[2])
else
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {digits(number), purges}
