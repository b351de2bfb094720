-- A GCRA limiter shared by all gateways: books used calls, even beyond the limit, and leases calls out of the rest.
-- KEYS[1] holds the time in µs at which the whole burst is free again, and the third and fourth argument of that call.
-- ARGV: calls used (negative: given back), calls wanted, µs until a call no longer counts, most calls at once.
-- Returns: calls leased, calls left (negative after an overdraft).
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local used, want, cell, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local text = redis.pcall('GET', KEYS[1])
-- What is no text, or not of this form, counts as missing.
local rest, was, most = string.match(type(text) == 'string' and text or '', '^(%d+) ([%d.]+) (%d+)$')
rest, was, most = tonumber(rest) or 0, tonumber(was) or cell, tonumber(most) or burst
if was <= 0 then was = cell end
-- After a change of the rate the used calls carry over, not their time, and no more of them than the burst.
if was ~= cell or most ~= burst then rest = now + math.min((rest - now) * cell / was, burst * cell) end
-- A clock that was ahead must not block callers for long.
rest = math.min(rest, now + 16 * burst * cell)
rest = math.max(math.max(rest, now) + used * cell, now)
local left = math.floor((now + burst * cell - rest) / cell)
local leased = 0
-- At most half, because other gateways ask as well.
if left > 0 then leased = math.min(want, math.max(1, math.ceil(left / 2))) end
rest = rest + leased * cell
if rest > now then
  redis.call('SET', KEYS[1], string.format('%.0f %s %s', rest, ARGV[3], ARGV[4]), 'PX', math.ceil((rest - now) / 1000) + 1000)
else
  redis.call('DEL', KEYS[1])
end
left = left - leased
return {leased, left}
