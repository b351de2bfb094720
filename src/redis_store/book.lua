-- Books units of a key in its day and month, once, and returns the totals over all gateways. ARGV: day, month,
-- units, known totals of the day and the month, id of the gateway, number of the booking.
local day, month, units = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local stored = redis.call('HMGET', KEYS[1], 'day', 'day_units', 'month', 'month_units', 'last')
-- A known window that equals the given one or follows it is still open. Any other has ended.
local function window(known, used, number, at_least)
  known, used = tonumber(known or -1), tonumber(used or 0)
  if known == number then return known, math.max(used, at_least) end
  if known == number + 1 then return known, used end
  return number, at_least
end
local d, du = window(stored[1], stored[2], day, tonumber(ARGV[4]))
local m, mu = window(stored[3], stored[4], month, tonumber(ARGV[5]))
-- The last booking of each process, newest first. Each start of a gateway is a new process, so the list is bounded.
local last, before = {ARGV[6] .. '=' .. ARGV[7]}, nil
for who, number in string.gmatch(stored[5] or '', '(%x+)=(%d+)') do
  if who == ARGV[6] then before = number
  elseif #last < 64 then last[#last + 1] = who .. '=' .. number end
end
-- A booking whose answer was lost is sent again.
if before ~= ARGV[7] then du, mu = du + units, mu + units end
local text = function(n) return string.format('%.0f', n) end
-- Earlier versions had a field for each process. Those fields are removed here.
if not stored[5] then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'day', text(d), 'day_units', text(du), 'month', text(m), 'month_units', text(mu),
  'last', table.concat(last, ','))
-- A month and some days.
redis.call('PEXPIRE', KEYS[1], 3024000000)
return {d, du, m, mu}
