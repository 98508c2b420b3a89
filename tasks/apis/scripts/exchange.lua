-- One process tells what became of its calls and what it waits for, and is told which calls may begin.
-- ARGV  1 profile  2 process  3 day  4 JSON: limits of the profile; held: calls in flight; ok, failed, limited: how calls ended since
--       it last told; latency: [bound of a bucket of seconds, or `sum`, number]; retry_after_s, reason; settled: [slice, requests, tokens] to correct; spent: usage; wants: [rank, job, number,
--       tokens of each]
-- Returns seconds to wait, why, slice, ceiling, what opened the circuit; then for each want how many may begin and the job's cost.
-- Keeps: no window has more requests or tokens than the limit; calls in flight of all live processes stay below the ceiling; what a
-- process holds counts until it says otherwise or falls silent.
local profile, holder, day, asked = ARGV[1], ARGV[2], ARGV[3], cjson.decode(ARGV[4])
local now, limits = read_clock(), asked.limits
local live = redis.call('HMGET', key_api_limits(profile), 'rpm', 'tpm', 'concurrency')
limits.rpm = tonumber(live[1] or limits.rpm)
limits.tpm = tonumber(live[2] or limits.tpm)
limits.concurrency = tonumber(live[3] or limits.concurrency)

local pace = read_hash(key_api_pace(profile))
local window = read_window(profile, pace, limits, now)
for _, each in ipairs(asked.settled) do count(profile, pace, window, each[1], each[2], each[3]) end
for _, each in ipairs(asked.spent) do spend(profile, day, each) end
tally(profile, asked)
judge(profile, limits, asked, now)

local others, wishes = read_holders(profile, holder, now)
local in_flight = others + asked.held
local ceiling = adapt(pace, limits, asked, in_flight + asked.ok, now)
if asked.retry_after_s > 0 then
  pace.paused_until = stamp(math.max(number(pace, 'paused_until'), now + asked.retry_after_s))
end

local given, wait, why = {}, 0, ''
local free = ceiling - in_flight
local passing, passing_wait, circuit, reason = passage(profile, now)
if number(pace, 'paused_until') > now then free, wait, why = 0, number(pace, 'paused_until') - now, 'paused' end
if passing == 0 then
  free, wait, why = 0, passing_wait, circuit
elseif passing then
  free = math.min(free, passing)
end
if #asked.wants > 0 and free > 0 then
  local short_wait, short = 0, ''
  local function fits(tokens)
    local fit
    fit, short_wait, short = fitting(window, tokens)
    return fit
  end
  local function give(each)
    given[each.at] = (given[each.at] or 0) + 1
    count(profile, pace, window, window.slice, 1, math.floor(math.min(each.tokens, window.most_tokens or each.tokens)))
    if passing then try(profile, limits, now) end
    asked.held = asked.held + 1
  end
  local left = share(profile, pace, asked.wants, wishes, math.min(free, limits.most_given), math.max(2, ceiling / 8), fits, give)
  if short_wait > 0 then wait, why = short_wait, short elseif left > 0 then why = 'turn' end
end
if why == '' and free <= 0 then why = 'ceiling' end

write_window(pace, window, now)
local flat = {}
for field, value in pairs(pace) do flat[#flat + 1] = field flat[#flat + 1] = value end
redis.call('HSET', key_api_pace(profile), unpack(flat))
redis.call('EXPIRE', key_api_pace(profile), HOUR_S)
redis.call('EXPIRE', key_api_window(profile), math.ceil(2 * window.length) + 1)
local waits = {}
for at, want in ipairs(asked.wants) do
  local number_left = want[3] - (given[at] or 0)
  if number_left > 0 then waits[#waits + 1] = {want[1], want[2], number_left} end
end
if asked.held == 0 and #waits == 0 then
  redis.call('HDEL', key_api_holders(profile), holder)
else
  -- An empty list has no JSON of its own in Lua.
  local text = #waits > 0 and cjson.encode(waits) or '[]'
  redis.call('HSET', key_api_holders(profile), holder, '{"held":' .. asked.held .. ',"at":' .. stamp(now) .. ',"wants":' .. text .. '}')
  redis.call('EXPIRE', key_api_holders(profile), HOUR_S)
end

local reply = {stamp(wait), why, tostring(window.slice), tostring(ceiling), reason}
for at, want in ipairs(asked.wants) do
  reply[#reply + 1] = given[at] or 0
  local spent = want[2] ~= '' and redis.call('HGET', key_job_usage(want[2]), 'cost:' .. limits.currency)
  reply[#reply + 1] = tonumber(spent or 0)
end
return reply
