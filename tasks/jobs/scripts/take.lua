-- Take the chunk a message names, or the next best of the queue; and adopt more of the same kind until a batch is full.
-- ARGV  1 queue  2 chunk  3 incarnation  4 worker  5 token  6 1: adopt
-- Returns chunk, job, stage, items, mode, layout of its payload, ... for each chunk taken; nothing when there is none.
-- Keeps: a worker that is to stop takes nothing; a chunk has one holder; the same token always gets the same chunks, so a lost reply may be asked for again.
local queue, wanted, incarnation, worker, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local taken, total = {}, 0

local function answer(id)
  local info = redis.call('HMGET', key_chunk(id), 'job', 'stage', 'items', 'mode', 'count')
  local layout = redis.call('HGET', key_job(info[1]), 'layout') or ''
  for _, value in ipairs({id, info[1], info[2], info[3], info[4], layout}) do taken[#taken + 1] = value end
  total = total + tonumber(info[5])
end

for _, id in ipairs(redis.call('SMEMBERS', key_held(incarnation))) do
  if redis.call('HGET', key_chunk(id), 'token') == token then answer(id) end
end
if #taken > 0 or redis.call('EXISTS', key_queue_mode(queue)) == 1 then return taken end
if redis.call('HGET', key_worker(worker), 'state') == '"stopping"' then return taken end
if redis.call('EXISTS', key_held(incarnation)) == 0 then redis.call('DEL', key_batch(incarnation)) end -- of chunks it lost

local function take(id)
  if redis.call('ZREM', key_dispatched(queue), id) == 0 then return false end
  local job = redis.call('HGET', key_chunk(id), 'job')
  local state = redis.call('HGET', key_job(job), 'state')
  if not is_active(state) then drop_chunk(id) return false end
  local at = stamp(now())
  redis.call('HSET', key_chunk(id), 'state', 'running', 'token', token, 'incarnation', incarnation, 'worker', worker,
    'taken_at', at)
  redis.call('SADD', key_running(queue), id)
  redis.call('SADD', key_held(incarnation), id)
  redis.call('SADD', key_holders(), incarnation)
  if state == 'queued' then
    redis.call('HSET', key_job(job), 'state', 'running', 'started_at', at)
    tell(job, 'running')
    note(job, 'running')
  end
  answer(id)
  return true
end

if not take(wanted) then
  for _, id in ipairs(redis.call('ZRANGE', key_dispatched(queue), 0, 31)) do
    wanted = id
    if take(id) then break end
  end
end
if #taken == 0 or ARGV[6] ~= '1' then return taken end
local first = redis.call('HMGET', key_chunk(wanted), 'batch_key', 'stage', 'mode')
if first[3] ~= '' then return taken end
local capacity = tonumber(redis.call('HGET', key_job(taken[2]), 'batch_items:' .. first[2]))
for _, id in ipairs(redis.call('ZRANGE', key_dispatched(queue), 0, 255)) do
  if total >= capacity then break end
  local info = redis.call('HMGET', key_chunk(id), 'batch_key', 'stage', 'mode', 'count')
  if info[1] == first[1] and info[2] == first[2] and info[3] == '' and total + tonumber(info[4]) <= capacity then take(id) end
end
return taken
