-- Time by the clock of the Redis server, the only clock that scripts use. Two readings of it:
--   clock.wall()  the server's own time, for times that people read
--   clock.now()   the same time, but it never goes back: for due times, timeouts and leases
-- A clock can step back when it is corrected, or when another server takes over. `correct` notices the step, and adds
-- it to every later reading of `now`.
local clock, known = {}, {}

-- Return the server's time in seconds since the epoch. The same in the whole script.
function clock.wall()
  if not known.wall then
    local time = redis.call('TIME')
    known.wall = tonumber(time[1]) + tonumber(time[2]) / 1000000
  end
  return known.wall
end

-- Return the time by which due times are set and compared, in seconds.
function clock.now()
  if not known.offset then known.offset = tonumber(redis.call('HGET', keys.clock(), 'offset') or 0) end
  return clock.wall() + known.offset
end

-- Format seconds for a field or a score: exact to the microsecond, never with an exponent.
function clock.stamp(seconds) return string.format('%.6f', seconds) end

-- Notice a step back since the last call. Called about every second. Returns the size of the step in seconds, or 0.
function clock.correct()
  local last = tonumber(redis.call('HGET', keys.clock(), 'wall') or 0)
  local back = math.max(0, last - clock.wall())
  if back > 0 then redis.call('HSET', keys.clock(), 'offset', clock.stamp(clock.now() - clock.wall() + back)) end
  redis.call('HSET', keys.clock(), 'wall', clock.stamp(clock.wall()))
  known.offset = nil
  return back
end

return clock
