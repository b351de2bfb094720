-- Returns the time, and the values of KEYS. A value that is not a string is returned as "".
local t = redis.call('TIME')
local found = {t[1], t[2]}
for i, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then value = '' end
  found[i + 2] = value
end
return found
