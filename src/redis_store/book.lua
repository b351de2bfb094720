-- Books units of a key in its day and month, once, and returns the totals over all gateways. ARGV: day, month,
-- units of the day and the month, known totals of the day and the month, id of the gateway, number of the booking.
local day, month, who, number = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[7], tonumber(ARGV[8])
local stored = redis.call('HMGET', KEYS[1], 'day', 'day_units', 'month', 'month_units', 'last')
-- A known window that equals the given one or follows it is still open. Any other has ended.
local function window(known, used, number, at_least)
  known, used = tonumber(known or -1), tonumber(used or 0)
  if known == number then return known, math.max(used, at_least) end
  if known == number + 1 then return known, used end
  return number, at_least
end
local d, du = window(stored[1], stored[2], day, tonumber(ARGV[5]))
local m, mu = window(stored[3], stored[4], month, tonumber(ARGV[6]))
-- The last booking of each process, newest first. Each start of a gateway is a new process, so the list is bounded.
local last, before = {}, 0
for other, its_number in string.gmatch(stored[5] or '', '(%x+)=(%d+)') do
  if other == who then before = tonumber(its_number)
  elseif #last < 63 then last[#last + 1] = other .. '=' .. its_number end
end
-- A booking whose answer was lost is sent again, and its first copy may even arrive after later bookings.
if number > before then du, mu = du + tonumber(ARGV[3]), mu + tonumber(ARGV[4]) end
local text = function(n) return string.format('%.0f', n) end
table.insert(last, 1, who .. '=' .. text(math.max(number, before)))
redis.call('HSET', KEYS[1], 'day', text(d), 'day_units', text(du), 'month', text(m), 'month_units', text(mu),
  'last', table.concat(last, ','))
-- A month and some days.
redis.call('PEXPIRE', KEYS[1], 3024000000)
return {d, du, m, mu}
