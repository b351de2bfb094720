-- Adds lines to the text at KEYS[1], each once, in their order, and keeps it for ARGV[1] milliseconds.
-- A line begins with its time, in microseconds of 20 digits; `ARGV[2]` is the time before which lines are of no use any
-- more, in the same digits; the rest of ARGV are lines. What is no such line is dropped. A line that goes on with
-- " - - - " makes all before it superfluous.
local text = redis.pcall('GET', KEYS[1])
if type(text) ~= 'string' then text = '' end
local lines, seen, from = {}, {}, ARGV[2]
local digits = string.rep('%d', 20)
local function add(line)
  if seen[line] or not string.find(line, '^' .. digits .. ' ') then return end
  seen[line] = true
  lines[#lines + 1] = line
  if string.find(line, '^' .. digits .. ' %- %- %- ') and string.sub(line, 1, 20) > from then
    from = string.sub(line, 1, 20)
  end
end
for line in string.gmatch(text, '[^\n]+') do add(line) end
for i = 3, #ARGV do add(ARGV[i]) end
table.sort(lines)
local kept = {}
for _, line in ipairs(lines) do
  if string.sub(line, 1, 20) >= from then kept[#kept + 1] = line end
end
redis.call('SET', KEYS[1], table.concat(kept, '\n'), 'PX', ARGV[1])
return 'ok'
