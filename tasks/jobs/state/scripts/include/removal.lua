-- Removal of a job with every key of it. Its folders are added to the set `staging`, whose sweep deletes abandoned
-- folders.
-- @hooks
-- @include chunks
-- @include claims
-- @include jobs
local removal = {}

-- Delete the keys whose names depend on the job's size and stages.
local function remove_pages(job_id)
  local stages, facts = jobs.stages(job_id), jobs.facts(job_id)
  local layout = jobs.layout(job_id)
  if layout.folder then redis.call('ZADD', keys.staging(), 0, layout.folder) end
  if not layout.folder or layout.prompts then redis.call('ZADD', keys.staging(), 0, job_id) end
  for part = 0, jobs.part_of(job_id, facts.total) do redis.call('UNLINK', keys.job_outcomes(job_id, part)) end
  for _, stage in ipairs(stages) do redis.call('UNLINK', keys.job_pending(job_id, stage.name)) end
  for page = math.floor(facts.trimmed / constants.PAGE_ITEMS), math.floor(facts.total / constants.PAGE_ITEMS) do
    redis.call('UNLINK', keys.job_groups(job_id, page))
    for _, stage in ipairs(stages) do redis.call('UNLINK', keys.job_passed(job_id, stage.name, page)) end
  end
end

-- Remove a job. Returns false when it is still runnable. A job that is `reopening` is removed: its retry was abandoned.
function removal.remove(job_id)
  if jobs.is_runnable(jobs.state(job_id)) then return false end
  for _, chunk_id in ipairs(redis.call('SMEMBERS', keys.job_chunks(job_id))) do
    claims.release_all(chunk_id)
    chunks.drop(chunk_id)
  end
  if redis.call('EXISTS', keys.job(job_id)) == 1 then remove_pages(job_id) end
  redis.call('UNLINK', keys.job(job_id), keys.job_definition(job_id), keys.job_blocks(job_id),
    keys.job_offsets(job_id), keys.job_parts(job_id),
    keys.job_settled(job_id), keys.job_carry(job_id), keys.job_members(job_id), keys.job_awaited(job_id),
    keys.job_reasons(job_id), keys.job_workers(job_id), keys.job_deaths(job_id), keys.job_attempts(job_id),
    keys.job_away(job_id), keys.job_chunks(job_id), keys.job_events(job_id), keys.job_usage(job_id))
  for _, kind_hooks in pairs(hooks) do
    if kind_hooks.removed then kind_hooks.removed(job_id) end
  end
  for _, key in ipairs({keys.jobs(), keys.expiry(), keys.deadlines(), keys.active()}) do
    redis.call('ZREM', key, job_id)
  end
  return true
end

return removal
