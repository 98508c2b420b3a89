-- Time by the clock of the Redis server, the only clock that scripts use.
local clock = {}

-- Return the seconds since the epoch.
function clock.now()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- Format seconds for a field or a score: exact to the microsecond, never with an exponent.
function clock.stamp(seconds) return string.format('%.6f', seconds) end

return clock
