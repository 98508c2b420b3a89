-- Usage counters of API calls: by profile and day, by job, by bearer token and day. Costs are integers, in billionths
-- of the currency, so that sums are exact.
-- @include totals
local usage = {}

local DAY_S = 86400
local PROFILE_KEPT_S, TOKEN_KEPT_S, JOB_KEPT_S = 100 * DAY_S, 100 * DAY_S, 30 * DAY_S

local function add(key, lifetime_s, spent)
  redis.call('HINCRBY', key, 'calls', spent.calls)
  redis.call('HINCRBY', key, 'prompt_tokens', spent.prompt_tokens)
  redis.call('HINCRBY', key, 'completion_tokens', spent.completion_tokens)
  if spent.cost then redis.call('HINCRBY', key, 'cost:' .. spent.currency, spent.cost) end
  redis.call('EXPIRE', key, lifetime_s)
end

-- Count the calls of a job and bearer token.
function usage.count(profile, day, spent)
  add(keys.api_usage(profile, day), PROFILE_KEPT_S, spent)
  if spent.job_id ~= '' then add(keys.job_usage(spent.job_id), JOB_KEPT_S, spent) end
  if spent.token ~= '' then add(keys.token_usage(spent.token, day), TOKEN_KEPT_S, spent) end
end

-- Add the report of a process to the totals for metrics. Profiles made from clients' URLs share the label `url`.
function usage.count_totals(profile, report)
  local name = string.match(profile, '^url%-') and 'url' or profile
  for _, outcome in ipairs({'ok', 'failed', 'limited'}) do
    totals.count(report[outcome], 'api|' .. name .. '|' .. outcome)
  end
  for bound, number in pairs(report.latency) do totals.count(number, 'api_s|' .. name .. '|' .. bound) end
  for _, spent in ipairs(report.spent) do
    totals.count(spent.prompt_tokens, 'api_tokens|' .. name .. '|prompt')
    totals.count(spent.completion_tokens, 'api_tokens|' .. name .. '|completion')
    if spent.cost then totals.count(spent.cost, 'api_cost|' .. name .. '|' .. spent.currency) end
  end
end

return usage
