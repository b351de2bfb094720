-- Books units of a key in its day and month, once, and returns the totals over all gateways. KEYS: the last bookings of the
-- key, its day, and its month. ARGV: units of the day and the month, known totals of the day and the month, id of the
-- gateway, number of the booking. Each day and month has a key of its own, so that a gateway whose clock is wrong changes
-- none that others count in.
local who, number = ARGV[5], tonumber(ARGV[6])
-- The last booking of each process, newest first. Each start of a gateway is a new process, so the list is bounded.
local last, before = {}, 0
for other, its_number in string.gmatch(redis.call('GET', KEYS[1]) or '', '(%x+)=(%d+)') do
  if other == who then before = tonumber(its_number)
  elseif #last < 63 then last[#last + 1] = other .. '=' .. its_number end
end
local text = function(n) return string.format('%.0f', n) end
table.insert(last, 1, who .. '=' .. text(math.max(number, before)))
-- A month and some days.
local life = 3024000000
redis.call('SET', KEYS[1], table.concat(last, ','), 'PX', life)
local function book(key, units, at_least, life)
  local used = math.max(tonumber(redis.call('GET', key) or 0), at_least)
  -- A booking whose answer was lost is sent again, and its first copy may even arrive after later bookings.
  if number > before then used = used + units end
  redis.call('SET', key, text(used), 'PX', life)
  return used
end
return {book(KEYS[2], tonumber(ARGV[1]), tonumber(ARGV[3]), 3 * 86400000), book(KEYS[3], tonumber(ARGV[2]), tonumber(ARGV[4]), life)}
