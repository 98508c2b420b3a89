-- The circuit: closed; open after too many failures in a row, while nobody calls; then half open, while one call tries.

local LONGEST_OPEN_S = 60
-- Told to wait for longer than this, callers had better look elsewhere.
local LONGEST_PAUSE_S = 60

local function open(profile, circuit, seconds, reason, now)
  local times = number(circuit, 'times')
  redis.call('HSET', key_api_circuit(profile), 'state', 'open', 'until', stamp(now + seconds), 'times', times + 1, 'reason', reason,
    'since', circuit.since or stamp(now))
  redis.call('EXPIRE', key_api_circuit(profile), HOUR_S)
end

local function judge(profile, limits, told, now)
  local circuit = read_hash(key_api_circuit(profile))
  if told.retry_after_s > LONGEST_PAUSE_S then
    open(profile, circuit, told.retry_after_s, told.reason, now)
  elseif told.ok > 0 or (told.limited > 0 and circuit.state == 'half_open') then
    if next(circuit) then redis.call('DEL', key_api_circuit(profile)) end
  elseif told.failed > 0 and circuit.state ~= 'open' then
    local failures = redis.call('HINCRBY', key_api_circuit(profile), 'failures', told.failed)
    redis.call('EXPIRE', key_api_circuit(profile), HOUR_S)
    if circuit.state == 'half_open' or failures >= limits.circuit_failures then
      local seconds = math.min(LONGEST_OPEN_S, limits.circuit_open_s * 2 ^ number(circuit, 'times'))
      open(profile, circuit, seconds, told.reason, now)
    end
  end
end

-- Returns how many calls may begin (nil: any number), the seconds until that may change, the state, and why it is so.
local function passage(profile, now)
  local circuit = redis.call('HMGET', key_api_circuit(profile), 'state', 'until', 'reason')
  if not circuit[1] then return nil, 0, 'closed', '' end
  local left = tonumber(circuit[2]) - now
  return left > 0 and 0 or 1, math.max(left, 0), circuit[1], circuit[3] or ''
end

-- One call begins, past an open circuit: it tries for all.
local function try(profile, limits, now)
  redis.call('HSET', key_api_circuit(profile), 'state', 'half_open', 'until', stamp(now + limits.timeout_s))
end
