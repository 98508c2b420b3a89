-- Create a job from the keys stored for it under a temporary name, and make its items pending. Idempotent.
--
-- ARGV
--   1   job id
--   2   temporary name that its items were stored under
--   3   1 when its items are in the storage, else 0
--   4   number of blocks of items stored in Redis
--   5   1 when its kind has a grouped stage, else 0
--   6   number of fields of the job's definition
--   7   number of fields of the job
--   8.. name and value of each field of the definition, then of the job; then stage and entry of each pending entry
-- Returns: 1; 0 when the job exists already, because the request was repeated; -1 when its files were deleted
-- meanwhile; -2 when not everything that was stored for it is there, because Redis lost its last moment.
-- Invariants:
--   * A job is visible only once its items are complete.
--   * A job is done when this returns if every item already has an outcome.
-- @hooks
-- @include clock
-- @include endings
-- @include events
-- @include jobs
-- @include pending
-- @include totals
local DEFINITION = 8
local job_id, staged, is_stored = ARGV[1], ARGV[2], ARGV[3] == '1'
local fields = DEFINITION + 2 * tonumber(ARGV[6])
local entries = fields + 2 * tonumber(ARGV[7])
local blocks, is_grouped = tonumber(ARGV[4]), ARGV[5] == '1'
local job, now = keys.job(job_id), clock.now()
local exists = redis.call('EXISTS', job) == 1
if not exists then
  if is_stored and not redis.call('ZSCORE', keys.staging(), staged) then return -1 end
  local wall, at = clock.stamp(clock.wall()), clock.stamp(now)
  redis.call('HSET', keys.job_definition(job_id), unpack(ARGV, DEFINITION, fields - 1))
  redis.call('HSET', job, 'created_at', wall, 'told_at', at, unpack(ARGV, fields, entries - 1))
end
local facts, first = jobs.facts(job_id), jobs.stages(job_id)[1].name

-- Return whether everything is there that was stored under the temporary name.
local function is_whole()
  if redis.call('HLEN', keys.job_blocks(staged)) ~= blocks then return false end
  local gap = string.rep('\0', 2)
  local offsets = redis.call('GET', keys.job_offsets(staged))
  if is_stored and (not offsets or string.find(offsets, gap, 1, true)) then return false end
  local prefilled, counts = 0, redis.call('HMGET', job, 'ok', 'failed')
  for page = 0, math.floor(facts.total / constants.PAGE_ITEMS) do
    local items = math.min(constants.PAGE_ITEMS, facts.total - page * constants.PAGE_ITEMS)
    local digits = redis.call('GET', keys.job_groups(staged, page)) or ''
    if is_grouped and (#digits ~= items * constants.GROUP_DIGITS or string.find(digits, gap, 1, true)) then
      return false
    end
    prefilled = prefilled + redis.call('BITCOUNT', keys.job_passed(staged, first, page))
  end
  local number = tonumber(counts[1]) + tonumber(counts[2])
  if prefilled ~= number or redis.call('HLEN', keys.job_outcomes(staged, 0)) ~= number then return false end
  return not is_grouped or redis.call('HLEN', keys.job_members(staged)) == redis.call('HLEN', keys.job_awaited(staged))
end

if not exists and not is_whole() then
  redis.call('DEL', job, keys.job_definition(job_id))
  return -2
end

-- Rename a temporary key to the job's key; or delete it, if the job exists already and has its own key.
local function adopt(from, to)
  if exists then
    redis.call('UNLINK', from)
  elseif redis.call('EXISTS', from) == 1 then
    redis.call('RENAME', from, to)
    redis.call('PERSIST', to)
  end
end

for _, key in ipairs({keys.job_blocks, keys.job_offsets, keys.job_members, keys.job_awaited}) do
  adopt(key(staged), key(job_id))
end
adopt(keys.job_outcomes(staged, 0), keys.job_outcomes(job_id, 0))
for page = 0, math.floor(facts.total / constants.PAGE_ITEMS) do
  adopt(keys.job_groups(staged, page), keys.job_groups(job_id, page))
  adopt(keys.job_passed(staged, first, page), keys.job_passed(job_id, first, page))
end
if exists then return 0 end
redis.call('ZREM', keys.staging(), staged)
redis.call('ZADD', keys.jobs(), clock.stamp(clock.wall()), job_id)
redis.call('ZADD', keys.active(), clock.stamp(now), job_id)
local info = redis.call('HMGET', job, 'ok', 'cached', 'priority', 'deadline_s')
totals.count(1, 'jobs|' .. facts.kind)
totals.count(jobs.items_of(job_id, info[1]), 'items|' .. facts.kind .. '|ok')
totals.count(jobs.items_of(job_id, info[2]), 'cached|' .. facts.kind)
local kind_hooks = hooks[facts.kind]
if kind_hooks and kind_hooks.created then kind_hooks.created(job_id) end
events.publish(job_id, constants.QUEUED)
events.log(job_id, constants.QUEUED, {total = jobs.items_of(job_id, facts.total), priority = info[3]})
for at = entries, #ARGV, 2 do pending.push(job_id, ARGV[at], ARGV[at + 1]) end
local deadline_s = tonumber(info[4] or '')
if deadline_s then redis.call('ZADD', keys.deadlines(), clock.stamp(now + deadline_s), job_id) end
endings.check(job_id)
return 1
