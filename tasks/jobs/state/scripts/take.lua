-- Lease the chunk that a message names, or the next best chunk of the queue, which is always a chunk of the highest
-- waiting priority; and adopt more chunks that can run in the same batch, until the batch is full.
--
-- ARGV
--   1  queue
--   2  chunk id that the message names, or ''
--   3  incarnation
--   4  worker
--   5  lease_id for the chunks
--   6  1 to adopt more chunks
-- Returns: six values per chunk taken: chunk id, job id, stage, items, mode, layout of its job. Nothing when no chunk
-- waits.
-- Invariants:
--   * A chunk is leased to at most one holder.
--   * Idempotent by lease_id: a repeated call gets the same chunks, so a client may retry after a lost reply.
--   * A worker that is stopping takes no chunk.
--   * No chunk is taken before a chunk of a higher priority, whatever the message names: with a broker queue per
--     priority, a worker holds a message of each, and they may come in any order.
-- @include chunks
-- @include clock
-- @include events
-- @include jobs
local LOOKED_AT, ADOPTABLE = 32, 256
local queue, wanted, incarnation, worker, lease_id, adopts = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6] == '1'
local taken, total = {}, 0

local function add_to_reply(chunk_id)
  local info = redis.call('HMGET', keys.chunk(chunk_id), 'job_id', 'stage', 'items', 'mode', 'count')
  local layout = redis.call('HGET', keys.job(info[1]), 'layout') or ''
  for _, value in ipairs({chunk_id, info[1], info[2], info[3], info[4], layout}) do taken[#taken + 1] = value end
  total = total + tonumber(info[5])
end

for _, chunk_id in ipairs(redis.call('SMEMBERS', keys.held(incarnation))) do
  if redis.call('HGET', keys.chunk(chunk_id), 'lease_id') == lease_id then add_to_reply(chunk_id) end
end
if #taken > 0 or redis.call('EXISTS', keys.queue_mode(queue)) == 1 then return taken end
if redis.call('HGET', keys.worker(worker), 'state') == '"stopping"' then return taken end
if redis.call('EXISTS', keys.held(incarnation)) == 0 then
  redis.call('DEL', keys.batch(incarnation)) -- left over from chunks whose leases the process lost
end

local function take(chunk_id)
  if redis.call('ZREM', keys.dispatched(queue), chunk_id) == 0 then return false end
  local chunk = keys.chunk(chunk_id)
  local job_id = redis.call('HGET', chunk, 'job_id')
  local state = jobs.state(job_id)
  if not jobs.is_runnable(state) then
    chunks.drop(chunk_id)
    return false
  end
  local at = clock.stamp(clock.now())
  redis.call('HSET', chunk, 'state', constants.RUNNING, 'lease_id', lease_id, 'incarnation', incarnation,
    'worker', worker, 'taken_at', at)
  redis.call('SADD', keys.running(queue), chunk_id)
  redis.call('SADD', keys.held(incarnation), chunk_id)
  redis.call('SADD', keys.holders(), incarnation)
  if state == constants.QUEUED then
    redis.call('HSET', keys.job(job_id), 'state', constants.RUNNING, 'started_at', clock.stamp(clock.wall()))
    events.publish(job_id, constants.RUNNING)
    events.log(job_id, constants.RUNNING)
  end
  add_to_reply(chunk_id)
  return true
end

local function priority_of(score) return math.floor(tonumber(score) / constants.PRIORITY_SPAN) end

-- Return whether a chunk of a higher priority than the named chunk waits.
local function is_outranked(chunk_id)
  local score = redis.call('ZSCORE', keys.dispatched(queue), chunk_id)
  local first = redis.call('ZRANGE', keys.dispatched(queue), 0, 0, 'WITHSCORES')
  return score and priority_of(first[2]) < priority_of(score)
end

if is_outranked(wanted) or not take(wanted) then
  for _, chunk_id in ipairs(redis.call('ZRANGE', keys.dispatched(queue), 0, LOOKED_AT - 1)) do
    wanted = chunk_id
    if take(chunk_id) then break end
  end
end
if #taken == 0 or not adopts then return taken end
local first = redis.call('HMGET', keys.chunk(wanted), 'batch_key', 'stage', 'mode')
local batch_key, stage = first[1], first[2]
if first[3] ~= '' then return taken end
local capacity = tonumber(redis.call('HGET', keys.job(taken[2]), 'batch_items:' .. stage))
for _, chunk_id in ipairs(redis.call('ZRANGE', keys.dispatched(queue), 0, ADOPTABLE - 1)) do
  if total >= capacity then break end
  local info = redis.call('HMGET', keys.chunk(chunk_id), 'batch_key', 'stage', 'mode', 'count')
  local is_alike = info[1] == batch_key and info[2] == stage and info[3] == ''
  if is_alike and total + tonumber(info[4]) <= capacity then take(chunk_id) end
end
return taken
