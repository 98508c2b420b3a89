-- Forget an ended job: nothing of it stays. Its files are left to the sweep of given-up uploads, which knows their folders from now on.
-- ARGV  1 job
-- Returns 1, or 0 when the job is still active.
local job = ARGV[1]
if is_active(redis.call('HGET', key_job(job), 'state')) then return 0 end
for _, id in ipairs(redis.call('SMEMBERS', key_job_chunks(job))) do
  release_claims(id)
  drop_chunk(id)
end
if redis.call('EXISTS', key_job(job)) == 1 then
  local folder = string.match(redis.call('HGET', key_job(job), 'layout') or '', 'stored:(.+)$')
  local stages, about = stages_of(job), facts(job)
  if folder then redis.call('ZADD', key_staging(), 0, folder) end
  if about.feeds or not folder then redis.call('ZADD', key_staging(), 0, job) end
  for part = 0, part_of(job, about.total) do redis.call('UNLINK', key_job_outcomes(job, part)) end
  for _, stage in ipairs(stages) do redis.call('UNLINK', key_job_pending(job, stage.name)) end
  for page = math.floor(about.trimmed / PAGE_ITEMS), math.floor(about.total / PAGE_ITEMS) do
    redis.call('UNLINK', key_job_groups(job, page))
    for _, stage in ipairs(stages) do redis.call('UNLINK', key_job_passed(job, stage.name, page)) end
  end
end
redis.call('UNLINK', key_job(job), key_job_blocks(job), key_job_offsets(job), key_job_parts(job),
  key_job_settled(job), key_job_carry(job), key_job_members(job), key_job_awaited(job), key_job_reasons(job), key_job_workers(job),
  key_job_deaths(job), key_job_attempts(job), key_job_chunks(job), key_job_events(job), key_job_usage(job))
forget_rollout(job)
redis.call('ZREM', key_jobs(), job)
redis.call('ZREM', key_expiry(), job)
redis.call('ZREM', key_deadlines(), job)
return 1
