-- Exchange of one process with the limits of a profile: it reports the results of its calls and the calls that wait,
-- and is granted the calls that may begin.
--
-- ARGV
--   1  profile
--   2  id of the process
--   3  day (UTC)
--   4  JSON of the report:
--      limits         limits of the profile
--      held           calls in flight
--      ok, failed, limited, retry_after_s, reason   results of calls since the last report
--      latency        bound of a bucket of seconds, or `sum` -> number
--      settled        list of {slice, requests, tokens} to correct
--      spent          list of usage: job_id, token, calls, prompt_tokens, completion_tokens, cost, currency
--      wants          list of waiting calls: rank, job_id, count, tokens of each
-- Returns JSON:
--   wait_s   seconds until the next exchange is useful
--   why      cause of the wait: `paused`, `open`, `half_open`, `requests`, `tokens`, `turn`, `ceiling`, or ''
--   slice    slice of the rate window that counts the granted calls
--   ceiling  maximum calls in flight
--   reason   cause of an open circuit
--   granted  list in the order of `wants`: count, and cost of the job so far
-- Invariants:
--   * No window has more requests or tokens than the limit.
--   * No call is granted while the calls in flight of the live processes have reached the ceiling.
--   * The calls that a process holds count until it reports a new number, or does not report for HOLDER_S.
-- @include ceiling
-- @include circuit_breaker
-- @include clock
-- @include commands
-- @include fields
-- @include rate
-- @include turns
-- @include usage
local profile, process, day, report = ARGV[1], ARGV[2], ARGV[3], cjson.decode(ARGV[4])
local now, limits, wants = clock.now(), report.limits, report.wants
local changed = redis.call('HMGET', keys.api_limits(profile), 'rpm', 'tpm', 'concurrency')
limits.rpm = tonumber(changed[1] or limits.rpm)
limits.tpm = tonumber(changed[2] or limits.tpm)
limits.concurrency = tonumber(changed[3] or limits.concurrency)

local pace = commands.read_hash(keys.api_pace(profile))
local window = rate.read(profile, pace, limits, now)
for _, each in ipairs(report.settled) do rate.count(pace, window, each.slice, each.requests, each.tokens) end
for _, spent in ipairs(report.spent) do usage.count(profile, day, spent) end
usage.count_totals(profile, report)
circuit_breaker.judge(profile, limits, report, now)

local others_held, others_wait = turns.read_others(profile, process, now)
local in_flight = others_held + report.held
local height = ceiling.adapt(pace, limits, report, in_flight + report.ok, now)
if report.retry_after_s > 0 then
  pace.paused_until = clock.stamp(math.max(fields.number(pace, 'paused_until'), now + report.retry_after_s))
end

local free, wait_s, why = height - in_flight, 0, ''
local passing, passing_wait_s, state, reason = circuit_breaker.passage(profile, now)
local paused_s = fields.number(pace, 'paused_until') - now
if paused_s > 0 then free, wait_s, why = 0, paused_s, 'paused' end
if passing == 0 then
  free, wait_s, why = 0, passing_wait_s, state
elseif passing then
  free = math.min(free, passing)
end

-- Grant waiting calls.
local granted = {} -- want -> number
if #wants > 0 and free > 0 then
  local short_s, short = 0, ''

  local function fits(tokens)
    local number
    number, short_s, short = rate.fitting(window, tokens)
    return number >= 1
  end

  local function grant(want)
    granted[want] = (granted[want] or 0) + 1
    rate.count(pace, window, window.slice, 1, math.floor(math.min(want.tokens, window.most_tokens or want.tokens)))
    if passing then circuit_breaker.try(profile, limits, now) end
    report.held = report.held + 1
  end

  local lead = math.max(2, height / 8)
  local most = math.min(free, limits.most_given)
  local left = turns.share(profile, pace, wants, others_wait, most, lead, fits, grant)
  if short_s > 0 then wait_s, why = short_s, short elseif left > 0 then why = 'turn' end
end
if why == '' and free <= 0 then why = 'ceiling' end

rate.write(pace, window, now)
local flat = {}
for field, value in pairs(pace) do
  flat[#flat + 1] = field
  flat[#flat + 1] = value
end
redis.call('HSET', keys.api_pace(profile), unpack(flat))
redis.call('EXPIRE', keys.api_pace(profile), constants.API_KEPT_S)

local waiting, replies = {}, {}
for at, want in ipairs(wants) do
  local count = granted[want] or 0
  if want.count > count then
    waiting[#waiting + 1] = {rank = want.rank, job_id = want.job_id, count = want.count - count}
  end
  local cost = want.job_id ~= '' and redis.call('HGET', keys.job_usage(want.job_id), 'cost:' .. limits.currency)
  replies[at] = string.format('{"count":%d,"cost":%s}', count, cost or '0')
end

-- cjson encodes an empty Lua table as an object, not as a list.
local function encode_list(list) return #list > 0 and cjson.encode(list) or '[]' end

local holders = keys.api_holders(profile)
if report.held == 0 and #waiting == 0 then
  redis.call('HDEL', holders, process)
else
  redis.call('HSET', holders, process,
    string.format('{"held":%d,"at":%.6f,"wants":%s}', report.held, now, encode_list(waiting)))
  redis.call('EXPIRE', holders, constants.API_KEPT_S)
end
return string.format('{"wait_s":%.6f,"why":"%s","slice":%d,"ceiling":%d,"reason":%s,"granted":[%s]}',
  wait_s, why, window.slice, height, cjson.encode(reason), table.concat(replies, ','))
