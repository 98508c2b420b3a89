-- What was used: by profile and day, by job, by token and day. Costs are whole billionths, so that sums are exact.

local DAY_S = 86400

local function add_usage(key, lifetime_s, spent)
  redis.call('HINCRBY', key, 'calls', spent.calls)
  redis.call('HINCRBY', key, 'prompt_tokens', spent.prompt_tokens)
  redis.call('HINCRBY', key, 'completion_tokens', spent.completion_tokens)
  if spent.cost then redis.call('HINCRBY', key, 'cost:' .. spent.currency, spent.cost) end
  redis.call('EXPIRE', key, lifetime_s)
end

local function spend(profile, day, spent)
  add_usage(key_api_usage(profile, day), 100 * DAY_S, spent)
  if spent.job ~= '' then add_usage(key_job_usage(spent.job), 30 * DAY_S, spent) end
  if spent.token ~= '' then add_usage(key_token_usage(spent.token, day), 100 * DAY_S, spent) end
end

-- For metrics, over all days. URLs of clients have no names of their own there.
local function tally(profile, asked)
  local name = string.match(profile, '^url%-') and 'url' or profile
  for _, outcome in ipairs({'ok', 'failed', 'limited'}) do count_total(asked[outcome], 'api|' .. name .. '|' .. outcome) end
  for _, each in ipairs(asked.latency) do count_total(each[2], 'api_s|' .. name .. '|' .. each[1]) end
  for _, spent in ipairs(asked.spent) do
    count_total(spent.prompt_tokens, 'api_tokens|' .. name .. '|prompt')
    count_total(spent.completion_tokens, 'api_tokens|' .. name .. '|completion')
    if spent.cost then count_total(spent.cost, 'api_cost|' .. name .. '|' .. spent.currency) end
  end
end
