-- The rate. No window of `window_s` has more requests, or tokens, than the limit, wherever it begins, as the API counts them; and
-- within it they are spread out, so that who comes first does not use it up for all others.
--
-- Time is cut into slices. A slice counts until it lies a whole window and MARGIN back: the margin is how long a call may take from
-- here to the API; who would be later gives its turn back. The pace is a hair below the limit, so that the window itself is seldom
-- full. After a rest a tenth may go at once, and at least five requests.

local SLICES, BURST, LEAST_BURST = 200, 0.1, 5

local function burst(most) return math.max(most * BURST, math.min(most, LEAST_BURST)) end

-- The window that holds for these limits; it is begun anew when its length changes.
local function read_window(profile, pace, limits, now)
  local window = {length = limits.window_s}
  if limits.rpm > 0 then window.length = math.max(window.length, 60 / limits.rpm) end
  window.slice_s = window.length / SLICES
  window.slice = math.floor(now / window.slice_s)
  window.first = math.floor((now - window.length - limits.margin_s) / window.slice_s)
  window.spread_s = window.length + limits.margin_s + 2 * window.slice_s
  local key, last = key_api_window(profile), number(pace, 'last_slice')
  if pace.length ~= tostring(window.length) or last < window.first then
    redis.call('DEL', key)
    pace.length, pace.requests, pace.tokens, pace.first_slice = tostring(window.length), '0', '0', tostring(window.first)
  end
  window.requests, window.tokens = number(pace, 'requests'), number(pace, 'tokens')
  for slice = number(pace, 'first_slice'), math.min(window.first, last + 1) - 1 do
    local fields = {'r' .. slice, 't' .. slice}
    local counted = redis.call('HMGET', key, fields[1], fields[2])
    if counted[1] or counted[2] then
      window.requests = window.requests - tonumber(counted[1] or 0)
      window.tokens = window.tokens - tonumber(counted[2] or 0)
      redis.call('HDEL', key, fields[1], fields[2])
    end
  end
  pace.first_slice = tostring(math.max(window.first, number(pace, 'first_slice')))
  window.most_requests = limits.rpm > 0 and math.floor(limits.rpm * window.length / 60 + 0.000001) or nil
  window.most_tokens = limits.tpm > 0 and math.floor(limits.tpm * window.length / 60) or nil
  -- How far calls are ahead of the pace: levels that sink with time. A limit that was changed counts from now on.
  local passed = math.max(now - number(pace, 'levels_at', now), 0)
  for _, what in ipairs({'requests', 'tokens'}) do
    local most = window['most_' .. what]
    local level = most and number(pace, what .. '_level') - passed * most / window.spread_s or 0
    window[what .. '_level'] = math.max(0, math.min(level, burst(most or 0)))
  end
  return window
end

-- Count requests and tokens, which may be negative, in a slice.
local function count(profile, pace, window, slice, requests, tokens)
  if slice < window.first or slice > window.slice then return end
  window.requests, window.tokens = window.requests + requests, window.tokens + tokens
  if requests ~= 0 then redis.call('HINCRBY', key_api_window(profile), 'r' .. slice, requests) end
  if tokens ~= 0 then redis.call('HINCRBY', key_api_window(profile), 't' .. slice, tokens) end
  pace.last_slice = tostring(math.max(number(pace, 'last_slice'), slice))
  window.requests_level = math.max(0, window.requests_level + requests)
  window.tokens_level = math.max(0, window.tokens_level + tokens)
end

local function write_window(pace, window, now)
  for _, what in ipairs({'requests', 'tokens'}) do
    pace[what], pace[what .. '_level'] = string.format('%.0f', window[what]), stamp(window[what .. '_level'])
  end
  pace.levels_at = stamp(now)
end

-- How many of `each` fit, and if none the seconds until one does.
local function room(window, what, each)
  local most = window['most_' .. what]
  local by_window = (most - window[what]) / each
  local by_pace = (math.max(burst(most), each) - window[what .. '_level']) / each
  if by_window < 1 then return 0, window.slice_s end
  if by_pace < 1 then return 0, (1 - by_pace) * each * window.spread_s / most end
  return math.floor(math.min(by_pace, by_window)), 0
end

-- How many requests of `tokens` each fit, the seconds until one does, and what is short.
local function fitting(window, tokens)
  local free, wait, short = math.huge, 0, ''
  if window.most_requests then
    free, wait = room(window, 'requests', 1)
    short = 'requests'
  end
  if window.most_tokens and free > 0 then
    local fit, until_fit = room(window, 'tokens', math.max(1, math.min(tokens, window.most_tokens)))
    if fit < free then free, wait, short = fit, until_fit, 'tokens' end
  end
  return free, wait, short
end
