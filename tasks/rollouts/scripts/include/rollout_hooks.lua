-- Hooks of the kind `rollout`, called by the scripts of jobs.
-- @include batches
-- @include clock
-- @include endings
-- @include feeding
-- @include jobs
-- @include rollouts
-- @include samples
local rollout_hooks = {}

function rollout_hooks.created(job_id) redis.call('SADD', keys.rollouts(), job_id) end

function rollout_hooks.removed(job_id) rollouts.remove(job_id) end

-- Return whether a device gets no work, because it could not load the rollout's weights.
function rollout_hooks.is_barred(job_id, queue)
  return redis.call('SISMEMBER', keys.rollout_left(job_id), queue) == 1
end

-- Put the bundles of a commit into the sample queue, count the prompts still being generated, and begin more prompts.
function rollout_hooks.committed(job_id, results, attachments)
  local bundles = {}
  for place, attachment in ipairs(attachments) do bundles[place] = {attachment[2], attachment[3]} end
  samples.put(job_id, bundles)
  if #results.counted > 0 and jobs.facts(job_id).first == results.stage then
    if rollouts.count(job_id, 'generating', -#results.counted) == 0 then rollouts.set_clock(job_id, false) end
  end
  feeding.feed(job_id)
end

-- For each rollout: return batches with an expired lease to the queue, and begin prompts; end a rollout that no client
-- has used for `idle_s` seconds.
function rollout_hooks.tend(idle_s)
  for _, job_id in ipairs(redis.call('SMEMBERS', keys.rollouts())) do
    local info = redis.call('HMGET', keys.job(job_id), 'state', 'created_at')
    if not info[1] then
      rollouts.remove(job_id)
    else
      batches.give_back_expired(job_id)
      local touched_at = tonumber(redis.call('HGET', keys.rollout(job_id), 'touched_at') or info[2])
      if jobs.is_runnable(info[1]) and clock.now() - touched_at > idle_s then
        endings.end_job(job_id, constants.CANCELLED, 'idle')
      else
        feeding.feed(job_id)
      end
    end
  end
end

return rollout_hooks
