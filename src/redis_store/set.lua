-- Writes ARGV[1] to KEYS[1] for ARGV[2] ms.
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'ok'
