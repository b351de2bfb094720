-- Removes lines from the text at KEYS[1] and adds others, sorted and without duplicates. ARGV[1] is the lifetime in
-- ms. A line begins with its time in µs, in 20 digits. ARGV[2] is the time before which lines are removed, in 20
-- digits. ARGV[3] is the number of lines to remove, which follow. The rest of ARGV are lines to add. Malformed
-- lines are removed.
local text = redis.pcall('GET', KEYS[1])
if type(text) ~= 'string' then text = '' end
local lines, seen, from, dropped = {}, {}, ARGV[2], tonumber(ARGV[3])
for i = 4, 3 + dropped do seen[ARGV[i]] = true end
local digits = string.rep('%d', 20)
local function add(line)
  if seen[line] or not string.find(line, '^' .. digits .. ' ') or string.sub(line, 1, 20) < from then return end
  seen[line] = true
  lines[#lines + 1] = line
end
for line in string.gmatch(text, '[^\n]+') do add(line) end
for i = 4 + dropped, #ARGV do add(ARGV[i]) end
table.sort(lines)
redis.call('SET', KEYS[1], table.concat(lines, '\n'), 'PX', ARGV[1])
return 'ok'
