-- End of a job: decides whether a job has ended, and writes its final state, counters and events.
-- @include chunks
-- @include clock
-- @include events
-- @include jobs
-- @include pending
-- @include totals
local endings = {}

-- Count the end of a job for metrics: its duration in seconds, and `unfinished`, its number of rows without an outcome.
local function count_end(job_id, state, unfinished, seconds)
  local kind, bound = jobs.facts(job_id).kind, constants.UNBOUNDED
  for _, each in ipairs(constants.JOB_BUCKETS) do
    if seconds <= each then
      bound = tostring(each)
      break
    end
  end
  totals.count(1, 'jobs_ended|' .. kind .. '|' .. state)
  totals.count(jobs.items_of(job_id, unfinished), 'items|' .. kind .. '|unfinished')
  totals.count(1, 'job_s|' .. kind .. '|' .. bound)
  totals.count(math.floor(seconds * 1000000), 'job_s|' .. kind .. '|sum')
end

-- End a job in this state. Pending items and dispatched chunks are dropped; running chunks continue until their worker
-- checks whether the job has ended.
function endings.end_job(job_id, state, reason)
  local at = clock.wall()
  local info = redis.call('HMGET', keys.job(job_id), 'ok', 'failed', 'total', 'keep_s', 'created_at')
  local ok, failed, total, seconds = info[1], info[2], info[3], math.max(0, at - tonumber(info[5] or at))
  count_end(job_id, state, tonumber(total) - tonumber(ok) - tonumber(failed), seconds)
  redis.call('HSET', keys.job(job_id), 'state', state, 'ended_at', clock.stamp(at), 'reason', reason)
  for _, stage in ipairs(jobs.stages(job_id)) do
    pending.make_unready(job_id, stage.name)
    redis.call('DEL', keys.job_pending(job_id, stage.name))
    redis.call('HSET', keys.job(job_id), 'pending:' .. stage.name, 0)
  end
  for _, chunk_id in ipairs(redis.call('SMEMBERS', keys.job_chunks(job_id))) do
    if redis.call('HGET', keys.chunk(chunk_id), 'state') == constants.DISPATCHED then chunks.drop(chunk_id) end
  end
  redis.call('ZREM', keys.deadlines(), job_id)
  redis.call('ZREM', keys.active(), job_id)
  redis.call('ZADD', keys.expiry(), clock.stamp(clock.now() + tonumber(info[4])), job_id)
  events.publish(job_id, state, {'ok', ok, 'failed', failed, 'total', total, 'reason', reason})
  redis.call('EXPIRE', keys.job_events(job_id), constants.EVENTS_TTL_S)
  events.log(job_id, state, {ok = jobs.items_of(job_id, ok), failed = jobs.items_of(job_id, failed),
    total = jobs.items_of(job_id, total), seconds = seconds, reason = reason})
end

-- Check, after the counters changed, whether the job is complete or too many of its items failed; else publish the
-- progress. Returns the job's state.
function endings.check(job_id)
  local info = redis.call('HMGET', keys.job(job_id),
    'state', 'ok', 'failed', 'total', 'max_failed_share', 'open', 'told_at', 'merged')
  local state, ok, failed, total = info[1], tonumber(info[2]), tonumber(info[3]), tonumber(info[4])
  if not jobs.is_runnable(state) then return state end
  if info[6] ~= '1' and failed > tonumber(info[5]) * total then
    endings.end_job(job_id, constants.FAILED, 'too_many_failed')
    return constants.FAILED
  end
  local counts = {'ok', info[2], 'failed', info[3], 'total', info[4]}
  if info[6] ~= '1' and ok + failed >= total then
    local part_items = jobs.facts(job_id).part_items
    local parts = part_items > 0 and math.ceil(total / part_items) or 0
    if tonumber(info[8] or 0) >= parts then
      endings.end_job(job_id, constants.DONE, '')
      return constants.DONE
    end
    if state ~= constants.FINISHING then
      redis.call('HSET', keys.job(job_id), 'state', constants.FINISHING)
      redis.call('ZREM', keys.deadlines(), job_id)
      events.publish(job_id, constants.FINISHING, counts)
    end
    return constants.FINISHING
  end
  local at = clock.now()
  if at - tonumber(info[7] or 0) >= constants.PROGRESS_EVERY_S then
    redis.call('HSET', keys.job(job_id), 'told_at', clock.stamp(at))
    events.publish(job_id, 'progress', counts)
  end
  return state
end

return endings
