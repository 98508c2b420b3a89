-- Sliding-window rate limiter of a profile. No window of `window_s`, wherever it begins, has more requests or tokens
-- than the limit, as the API counts them. Within a window calls are paced, so that the first process does not use up
-- the whole window.
--
-- Time is divided into slices. A slice counts until it is older than a whole window and the margin: the margin is the
-- time that a call may take from its permit to the API, and an older permit is given back. The pace is slightly below
-- the limit, so that the window itself is seldom full. After a pause, a burst of a tenth of the limit, and at least
-- five requests, may start at once.
--
-- `pace` is the hash keys.api_pace as a table. Functions change it; exchange.lua writes it.
-- @include clock
-- @include fields
local rate = {}

local SLICES, BURST, LEAST_BURST = 200, 0.1, 5
local UNITS = {'requests', 'tokens'}

local function burst(most) return math.max(most * BURST, math.min(most, LEAST_BURST)) end

-- Drop the slices that no longer count.
local function forget_slices(key, pace, window, last)
  for slice = fields.number(pace, 'first_slice'), math.min(window.first, last + 1) - 1 do
    local names = {'r' .. slice, 't' .. slice}
    local counted = redis.call('HMGET', key, names[1], names[2])
    if counted[1] or counted[2] then
      window.requests = window.requests - tonumber(counted[1] or 0)
      window.tokens = window.tokens - tonumber(counted[2] or 0)
      redis.call('HDEL', key, names[1], names[2])
    end
  end
  pace.first_slice = tostring(math.max(window.first, fields.number(pace, 'first_slice')))
end

-- Return the window for the given limits. A change of its length resets it.
function rate.read(profile, pace, limits, now)
  local window = {profile = profile, length = limits.window_s}
  if limits.rpm > 0 then window.length = math.max(window.length, 60 / limits.rpm) end
  window.slice_s = window.length / SLICES
  window.slice = math.floor(now / window.slice_s)
  window.first = math.floor((now - window.length - limits.margin_s) / window.slice_s)
  window.spread_s = window.length + limits.margin_s + 2 * window.slice_s
  local key, last, length = keys.api_window(profile), fields.number(pace, 'last_slice'), tostring(window.length)
  if pace.length ~= length or last < window.first then
    redis.call('DEL', key)
    pace.length, pace.requests, pace.tokens, pace.first_slice = length, '0', '0', tostring(window.first)
  end
  window.requests, window.tokens = fields.number(pace, 'requests'), fields.number(pace, 'tokens')
  forget_slices(key, pace, window, last)
  window.most_requests = limits.rpm > 0 and math.floor(limits.rpm * window.length / 60 + 0.000001) or nil
  window.most_tokens = limits.tpm > 0 and math.floor(limits.tpm * window.length / 60) or nil
  -- Leaky buckets: a level is the number of calls ahead of the pace, and sinks with time. A changed limit applies from
  -- now on.
  local passed = math.max(now - fields.number(pace, 'levels_at', now), 0)
  for _, unit in ipairs(UNITS) do
    local most = window['most_' .. unit]
    local level = most and fields.number(pace, unit .. '_level') - passed * most / window.spread_s or 0
    window[unit .. '_level'] = math.max(0, math.min(level, burst(most or 0)))
  end
  return window
end

-- Count requests and tokens in a slice. Both may be negative.
function rate.count(pace, window, slice, requests, tokens)
  if slice < window.first or slice > window.slice then return end
  local key = keys.api_window(window.profile)
  window.requests, window.tokens = window.requests + requests, window.tokens + tokens
  if requests ~= 0 then redis.call('HINCRBY', key, 'r' .. slice, requests) end
  if tokens ~= 0 then redis.call('HINCRBY', key, 't' .. slice, tokens) end
  pace.last_slice = tostring(math.max(fields.number(pace, 'last_slice'), slice))
  window.requests_level = math.max(0, window.requests_level + requests)
  window.tokens_level = math.max(0, window.tokens_level + tokens)
end

-- Write the window's counts into `pace`, and renew the TTL of its slices.
function rate.write(pace, window, now)
  for _, unit in ipairs(UNITS) do
    pace[unit], pace[unit .. '_level'] = string.format('%.0f', window[unit]), clock.stamp(window[unit .. '_level'])
  end
  pace.levels_at = clock.stamp(now)
  redis.call('EXPIRE', keys.api_window(window.profile), math.ceil(2 * window.length) + 1)
end

-- Return the number of calls of `each` units that fit, and, if it is 0, the seconds until a call fits.
local function room(window, unit, each)
  local most = window['most_' .. unit]
  local by_window = (most - window[unit]) / each
  local by_pace = (math.max(burst(most), each) - window[unit .. '_level']) / each
  if by_window < 1 then return 0, window.slice_s end
  if by_pace < 1 then return 0, (1 - by_pace) * each * window.spread_s / most end
  return math.floor(math.min(by_pace, by_window)), 0
end

-- Return the number of requests of `tokens` tokens each that fit, the seconds until a request fits, and the exhausted
-- unit.
function rate.fitting(window, tokens)
  local free, wait_s, short = math.huge, 0, ''
  if window.most_requests then
    free, wait_s = room(window, 'requests', 1)
    short = 'requests'
  end
  if window.most_tokens and free > 0 then
    local fit, until_fit = room(window, 'tokens', math.max(1, math.min(tokens, window.most_tokens)))
    if fit < free then free, wait_s, short = fit, until_fit, 'tokens' end
  end
  return free, wait_s, short
end

return rate
