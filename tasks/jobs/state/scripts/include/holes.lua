-- Holes: items of a job that are in no place, so that nothing would ever run them: not counted, not pending, in no
-- chunk, and not away. The scripts never cause one, but a fault that they do not know could.
-- @include away
-- @include groups
-- @include jobs
-- @include passed
-- @include pending
-- @include ranges
local holes = {}

-- Return the items of a stage that are pending or in a chunk, as a table of `true` by index. Corrects the number of
-- pending items.
local function placed(job_id, stage)
  local found = {}
  local function add(set)
    for _, index in ipairs(ranges.expand(set)) do found[index] = true end
  end
  local number = 0
  for _, entry in ipairs(redis.call('LRANGE', keys.job_pending(job_id, stage), 0, -1)) do
    add(entry)
    number = number + ranges.count(entry)
  end
  redis.call('HSET', keys.job(job_id), 'pending:' .. stage, number)
  for _, chunk_id in ipairs(redis.call('SMEMBERS', keys.job_chunks(job_id))) do
    local info = redis.call('HMGET', keys.chunk(chunk_id), 'stage', 'items')
    if info[1] == stage then add(info[2]) end
  end
  return found
end

-- Make the items of a list pending that are in no place. Returns their number.
local function fill(job_id, stage, candidates, prefix)
  local found, is_any_away, missing = placed(job_id, stage), away.is_any(job_id), {}
  for _, index in ipairs(candidates) do
    if not found[index] and not (is_any_away and away.is_in(job_id, stage, index)) then
      missing[#missing + 1] = index
    end
  end
  if #missing > 0 then pending.push(job_id, stage, prefix .. ranges.compress(missing), true) end
  return #missing
end

-- Return the items of the first stage that are not counted, as a list.
local function not_passed(job_id, stage)
  local facts, left = jobs.facts(job_id), {}
  local first, size = facts.trimmed, constants.PAGE_ITEMS
  for page = math.floor(first / size), math.floor(math.max(0, facts.total - 1) / size) do
    local bits, start = redis.call('GET', keys.job_passed(job_id, stage, page)) or '', page * size
    local last = math.min(size, facts.total - start) - 1
    for at = 0, math.floor(last / 8) do
      local byte = string.byte(bits, at + 1) or 0
      if byte < 255 then
        for bit_at = 0, math.min(7, last - at * 8) do
          local index = start + at * 8 + bit_at
          if index >= first and math.floor(byte / 2 ^ (7 - bit_at)) % 2 == 0 then left[#left + 1] = index end
        end
      end
    end
  end
  return left
end

-- Return the items that have passed to each later stage and are not counted there: stage -> list.
local function passed_on(job_id)
  local carry, found = redis.call('HGETALL', keys.job_carry(job_id)), {}
  for at = 1, #carry, 2 do
    local stage = string.match(carry[at + 1], '^([^\n]*)\n')
    if stage and not passed.is_set(job_id, stage, carry[at]) then
      found[stage] = found[stage] or {}
      table.insert(found[stage], tonumber(carry[at]))
    end
  end
  return found
end

-- Make items of a grouped stage pending again, group by group, if their whole group has reached the stage.
local function fill_groups(job_id, stage, indices)
  local members, number = {}, 0
  for _, index in ipairs(indices) do
    local group = groups.of(job_id, index)
    members[group] = members[group] or {}
    table.insert(members[group], index)
  end
  for group, list in pairs(members) do
    if tonumber(redis.call('HGET', keys.job_awaited(job_id), group) or 0) <= 0 then
      number = number + fill(job_id, stage, list, '=')
    end
  end
  return number
end

-- Make complete parts of a stored job pending that are in no place. Returns their number.
local function fill_parts(job_id)
  local facts, complete = jobs.facts(job_id), {}
  if facts.part_items == 0 then return 0 end
  for part = 0, jobs.part_of(job_id, facts.total - 1) do
    local settled = tonumber(redis.call('HGET', keys.job_settled(job_id), part) or 0)
    if settled == jobs.part_size(job_id, part) and not passed.is_set(job_id, constants.PARTS, part) then
      complete[#complete + 1] = part
    end
  end
  return fill(job_id, constants.PARTS, complete, '')
end

-- Make items pending again that claim to be away, but are neither parked nor waiting. Returns their number.
local function fill_away(job_id)
  local entries, number = redis.call('HGETALL', keys.job_away(job_id)), 0
  for at = 1, #entries, 2 do
    local member, request = job_id .. '|' .. entries[at], entries[at + 1]
    local is_there
    if request == '' then
      is_there = redis.call('ZSCORE', keys.parked(), member)
    else
      local owner = redis.call('GET', keys.claim(request))
      is_there = owner and redis.call('EXISTS', keys.chunk(owner)) == 1
        and redis.call('SISMEMBER', keys.waiters(request), member) == 1
    end
    if not is_there then
      local stage, index = string.match(entries[at], '^(.-)|(%d+)$')
      if request ~= '' then redis.call('SREM', keys.waiters(request), member) end
      pending.resume(job_id, stage, index)
      number = number + 1
    end
  end
  return number
end

-- Make every item of a runnable job pending again that is in no place. Returns their number.
function holes.fill(job_id)
  local number = fill_away(job_id)
  for position, stage in ipairs(jobs.stages(job_id)) do
    if position == 1 then number = number + fill(job_id, stage.name, not_passed(job_id, stage.name), '') end
  end
  for stage, indices in pairs(passed_on(job_id)) do
    if redis.call('HGET', keys.job(job_id), 'grouped:' .. stage) == '1' then
      number = number + fill_groups(job_id, stage, indices)
    else
      number = number + fill(job_id, stage, indices, '')
    end
  end
  return number + fill_parts(job_id)
end

return holes
