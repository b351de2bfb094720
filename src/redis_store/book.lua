-- Books units of one key in its day and its month, once, and tells what all together have booked.
-- ARGV: day, month, units, units of this day and this month that were known before, who books, the number of the booking.
local day, month, units = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local held = redis.call('HMGET', KEYS[1], 'day', 'day_units', 'month', 'month_units', 'last')
-- A window that was known and is this one or the next has not ended; any other has.
local function window(known, used, number, at_least)
  known, used = tonumber(known or -1), tonumber(used or 0)
  if known == number then return known, math.max(used, at_least) end
  if known == number + 1 then return known, used end
  return number, at_least
end
local d, du = window(held[1], held[2], day, tonumber(ARGV[4]))
local m, mu = window(held[3], held[4], month, tonumber(ARGV[5]))
-- The last processes that booked and the number of each one's booking, the newest first. Each start of a gateway is
-- another process, so the list has an end.
local last, before = {ARGV[6] .. '=' .. ARGV[7]}, nil
for who, number in string.gmatch(held[5] or '', '(%x+)=(%d+)') do
  if who == ARGV[6] then before = number
  elseif #last < 64 then last[#last + 1] = who .. '=' .. number end
end
-- A booking whose answer was lost comes a second time.
if before ~= ARGV[7] then du, mu = du + units, mu + units end
local text = function(n) return string.format('%.0f', n) end
-- Earlier versions had a field for each process, which nothing else takes away.
if not held[5] then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'day', text(d), 'day_units', text(du), 'month', text(m), 'month_units', text(mu),
  'last', table.concat(last, ','))
-- A month, and some days.
redis.call('PEXPIRE', KEYS[1], 3024000000)
return {d, du, m, mu}
