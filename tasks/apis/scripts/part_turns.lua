-- Whose turn it is: interactive calls before normal ones before bulk; within each, the job that was given least. What is another
-- process's turn is left for it to fetch, which it does within milliseconds; only a small lead over others may be had meanwhile.

-- What a process said it waits for counts for so long.
local FRESH_S, HELD_S = 1.5, 10

-- Returns calls in flight of all processes, and the others' wishes: rank -> job -> number.
local function read_holders(profile, holder, now)
  local in_flight, wishes = 0, {{}, {}, {}}
  for name, text in pairs(read_hash(key_api_holders(profile))) do
    local entry = cjson.decode(text)
    if now - entry.at > HELD_S then
      redis.call('HDEL', key_api_holders(profile), name)
    elseif name ~= holder then
      in_flight = in_flight + entry.held
      if now - entry.at <= FRESH_S then
        for _, want in ipairs(entry.wants) do
          local jobs = wishes[want[1]]
          jobs[want[2]] = (jobs[want[2]] or 0) + want[3]
        end
      end
    end
  end
  return in_flight, wishes
end

-- `free` calls are shared out. `wants` are this process's: {rank, job, number, tokens}. `fits(tokens)` says how many of them fit, `give`
-- is told of each that is given. Returns the number that is left for others.
local function share(profile, pace, wants, wishes, free, lead, fits, give)
  local left = 0
  for rank = 1, 3 do
    local jobs, floor = {}, number(pace, 'floor' .. rank)
    for job, wished in pairs(wishes[rank]) do jobs[job] = {job = job, theirs = wished, mine = 0} end
    for at, want in ipairs(wants) do
      if want[1] == rank then
        jobs[want[2]] = jobs[want[2]] or {job = want[2], theirs = 0}
        jobs[want[2]].mine, jobs[want[2]].at, jobs[want[2]].tokens = want[3], at, want[4]
      end
    end
    local names = {}
    for job in pairs(jobs) do names[#names + 1] = job end
    table.sort(names)
    -- One that is new, or comes back, begins where the others are: what it did not ask for is not owed to it.
    local least = math.huge
    for _, job in ipairs(names) do
      jobs[job].served = math.max(floor, tonumber(redis.call('ZSCORE', key_api_served(profile, rank), job) or 0))
      least = math.min(least, jobs[job].served)
    end
    if #names > 0 then pace['floor' .. rank] = tostring(least) end
    while free - left > 0 do
      local first, mine
      for _, job in ipairs(names) do
        local each = jobs[job]
        if each.mine + each.theirs > 0 and (not first or each.served < first.served) then first = each end
        if each.mine > 0 and (not mine or each.served < mine.served) then mine = each end
      end
      if not first then break end
      local chosen = mine and mine.served - first.served <= lead and mine or first
      if chosen.mine > 0 then
        if fits(chosen.tokens) < 1 then return left end
        give(chosen)
        free, chosen.mine, chosen.given = free - 1, chosen.mine - 1, (chosen.given or 0) + 1
      else
        left, chosen.theirs = left + 1, chosen.theirs - 1
      end
      chosen.served = chosen.served + 1
    end
    if #names > 0 then
      for _, job in ipairs(names) do
        if jobs[job].given then redis.call('ZADD', key_api_served(profile, rank), jobs[job].served, job) end
      end
      redis.call('ZREMRANGEBYSCORE', key_api_served(profile, rank), '-inf', '(' .. least)
      redis.call('EXPIRE', key_api_served(profile, rank), HOUR_S)
    end
  end
  return left
end
