-- Circuit breaker of a profile: closed; open after too many consecutive failures, when no call is made; half open after
-- the open time, when a single call probes the API.
-- @include clock
-- @include commands
-- @include fields
local circuit_breaker = {}

local LONGEST_OPEN_S = 60
-- When the API asks for a longer pause than this, the circuit opens, so that callers use a fallback.
local LONGEST_PAUSE_S = 60

local function open(key, record, seconds, reason, now)
  redis.call('HSET', key, 'state', 'open', 'until', clock.stamp(now + seconds), 'reason', reason,
    'times', fields.number(record, 'times') + 1, 'since', record.since or clock.stamp(now))
  redis.call('EXPIRE', key, constants.API_KEPT_S)
end

-- Open or close the circuit by the results of calls.
function circuit_breaker.judge(profile, limits, report, now)
  local key = keys.api_circuit(profile)
  local record = commands.read_hash(key)
  if report.retry_after_s > LONGEST_PAUSE_S then
    open(key, record, report.retry_after_s, report.reason, now)
  elseif report.ok > 0 or (report.limited > 0 and record.state == 'half_open') then
    if next(record) then redis.call('DEL', key) end
  elseif report.failed > 0 and record.state ~= 'open' then
    local failures = redis.call('HINCRBY', key, 'failures', report.failed)
    redis.call('EXPIRE', key, constants.API_KEPT_S)
    if record.state == 'half_open' or failures >= limits.circuit_failures then
      local seconds = math.min(LONGEST_OPEN_S, limits.circuit_open_s * 2 ^ fields.number(record, 'times'))
      open(key, record, seconds, report.reason, now)
    end
  end
end

-- Return how many calls may begin (nil: any number), the seconds until that may change, the state and its reason.
function circuit_breaker.passage(profile, now)
  local info = redis.call('HMGET', keys.api_circuit(profile), 'state', 'until', 'reason')
  if not info[1] then return nil, 0, 'closed', '' end
  local left_s = tonumber(info[2]) - now
  return left_s > 0 and 0 or 1, math.max(left_s, 0), info[1], info[3] or ''
end

-- Let a single probe call through an open circuit.
function circuit_breaker.try(profile, limits, now)
  redis.call('HSET', keys.api_circuit(profile), 'state', 'half_open', 'until', clock.stamp(now + limits.timeout_s))
end

return circuit_breaker
