-- Books units of a key in its day and month, once, and returns the totals over all gateways with their marks. KEYS: the last
-- bookings of the key, its day, and its month. ARGV: units of the day and the month, known totals of the day and the month,
-- marks of these totals, 1 if they replace those that are here, id of the gateway, number of the booking. Each day and month
-- has a key of its own, so that a gateway whose clock is wrong changes none that others count in.
local sets, who, number = ARGV[7] == '1', ARGV[8], tonumber(ARGV[9])
-- What is no text, or not of this form, counts as missing: its key alone begins anew, from what the gateways know.
local function text_at(key)
  local text = redis.pcall('GET', key)
  return type(text) == 'string' and text or ''
end
local function text(n) return string.format('%.0f', n) end
-- The last booking of each process, newest first. Each start of a gateway is a new process, so the list is bounded.
local last, before = {}, 0
for other, its_number in string.gmatch(text_at(KEYS[1]), '(%x+)=(%d+)') do
  if other == who then before = tonumber(its_number)
  elseif #last < 63 then last[#last + 1] = other .. '=' .. its_number end
end
table.insert(last, 1, who .. '=' .. text(math.max(number, before)))
-- A month and some days.
local life = 3024000000
redis.call('SET', KEYS[1], table.concat(last, ','), 'PX', life)
local function book(key, units, known, mark, life)
  local used, its_mark = string.match(text_at(key), '^(%d+) (%d+)$')
  -- A total beyond 2^53 is none, because it could not be added to.
  if used and #used < 16 and #its_mark < 10 then used = tonumber(used) else used = nil end
  if number > before then
    if sets or not used then used, its_mark = known, mark
    elseif its_mark == mark then used = math.max(used, known) end
    -- A booking whose answer was lost is sent again, and its first copy may even arrive after later bookings.
    used = used + units
  elseif not used then used, its_mark = known, mark end
  redis.call('SET', key, text(used) .. ' ' .. its_mark, 'PX', life)
  return used, tonumber(its_mark)
end
local day, day_mark = book(KEYS[2], tonumber(ARGV[1]), tonumber(ARGV[3]), ARGV[5], 3 * 86400000)
local month, month_mark = book(KEYS[3], tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[6], life)
return {text(day), text(month), day_mark, month_mark}
