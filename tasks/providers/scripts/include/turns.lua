-- Fair order of waiting calls. Interactive calls go before normal calls, normal before bulk calls; within a priority
-- the job that was granted the fewest calls is next. If that job waits in a different process, its turn is left for
-- that process to fetch, within milliseconds; meanwhile this process's jobs may get only a small lead.
-- @include commands
-- @include fields
local turns = {}

-- Seconds for which a process's report of waiting calls stays valid.
local FRESH_S = 1.5

-- Return the calls in flight of the other processes, and their waiting calls: rank -> job id -> number.
function turns.read_others(profile, holder, now)
  local in_flight, waiting = 0, {{}, {}, {}}
  for name, text in pairs(commands.read_hash(keys.api_holders(profile))) do
    local entry = cjson.decode(text)
    if now - entry.at > constants.HOLDER_S then
      redis.call('HDEL', keys.api_holders(profile), name)
    elseif name ~= holder then
      in_flight = in_flight + entry.held
      if now - entry.at <= FRESH_S then
        for _, want in ipairs(entry.wants) do
          local counts = waiting[want.rank]
          counts[want.job_id] = (counts[want.job_id] or 0) + want.count
        end
      end
    end
  end
  return in_flight, waiting
end

-- Return the jobs of a rank that wait for calls, here or in other processes, in the order of their ids.
local function read_jobs(profile, rank, wants, others, floor)
  local by_id, list = {}, {}
  local function find(job_id)
    if not by_id[job_id] then
      by_id[job_id] = {id = job_id, mine = 0, theirs = 0}
      list[#list + 1] = by_id[job_id]
    end
    return by_id[job_id]
  end
  for job_id, count in pairs(others) do find(job_id).theirs = count end
  for _, want in ipairs(wants) do
    if want.rank == rank then
      local job = find(want.job_id)
      job.mine, job.want = want.count, want
    end
  end
  table.sort(list, function(one, other) return one.id < other.id end)
  for _, job in ipairs(list) do
    job.served = math.max(floor, tonumber(redis.call('ZSCORE', keys.api_served(profile, rank), job.id) or 0))
  end
  return list
end

-- Return the least served job among the jobs that wait anywhere, and among the jobs that wait in this process.
local function least_served(list)
  local first, mine
  for _, job in ipairs(list) do
    if job.mine + job.theirs > 0 and (not first or job.served < first.served) then first = job end
    if job.mine > 0 and (not mine or job.served < mine.served) then mine = job end
  end
  return first, mine
end

-- Grant up to `free` calls. `wants` are the waiting calls of this process. `fits(tokens)` returns whether a further
-- call fits the rate; `grant(want)` is called for each granted call. Returns the number left for other processes.
function turns.share(profile, pace, wants, others, free, lead, fits, grant)
  local left = 0
  for rank = 1, #constants.PRIORITIES do
    local field = 'floor' .. rank
    local list = read_jobs(profile, rank, wants, others[rank], fields.number(pace, field))
    -- A job that is new or returns begins at the level of the least served job: it does not catch up on calls that it
    -- did not request.
    local least = math.huge
    for _, job in ipairs(list) do least = math.min(least, job.served) end
    if #list > 0 then pace[field] = tostring(least) end
    while free - left > 0 do
      local first, mine = least_served(list)
      if not first then break end
      local chosen = mine and mine.served - first.served <= lead and mine or first
      if chosen.mine > 0 then
        if not fits(chosen.want.tokens) then return left end
        grant(chosen.want)
        free, chosen.mine, chosen.is_granted = free - 1, chosen.mine - 1, true
      else
        left, chosen.theirs = left + 1, chosen.theirs - 1
      end
      chosen.served = chosen.served + 1
    end
    if #list > 0 then
      local served = keys.api_served(profile, rank)
      for _, job in ipairs(list) do
        if job.is_granted then redis.call('ZADD', served, job.served, job.id) end
      end
      redis.call('ZREMRANGEBYSCORE', served, '-inf', '(' .. least)
      redis.call('EXPIRE', served, constants.API_KEPT_S)
    end
  end
  return left
end

return turns
