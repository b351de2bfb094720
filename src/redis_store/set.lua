-- Writes ARGV[1] to KEYS[1] for ARGV[2] ms. If there is an ARGV[3], writes only in place of this text or of no value,
-- and otherwise returns "older".
if ARGV[3] then
  local stored = redis.pcall('GETRANGE', KEYS[1], 0, #ARGV[3])
  if stored ~= '' and stored ~= ARGV[3] then return 'older' end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'ok'
