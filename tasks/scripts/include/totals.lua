-- Metrics counters of the cluster, over every job and process. See tasks/counters.py.
local totals = {}

-- Add to a counter. `name` is the counter and its labels, separated by `|`.
function totals.count(number, name)
  if number > 0 then redis.call('HINCRBY', keys.totals(), name, number) end
end

return totals
