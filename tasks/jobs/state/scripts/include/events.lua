-- Events of jobs: for clients that watch a job, and for the log.
-- @include jobs
local events = {}

-- Append an event to the job's stream, which keeps the last EVENTS_KEPT events. `fields` is a flat list of names and
-- values.
function events.publish(job_id, event, fields)
  redis.call('XADD', keys.job_events(job_id), 'MAXLEN', '~', constants.EVENTS_KEPT, '*', 'event', event,
    unpack(fields or {}))
end

-- Queue an event for the log, see tasks/jobs/queries/job_log.py. `fields` is a table of names and values.
function events.log(job_id, event, fields)
  local entry = fields or {}
  entry.job_id, entry.event, entry.kind = job_id, event, jobs.facts(job_id).kind
  if redis.call('RPUSH', keys.happened(), cjson.encode(entry)) > constants.EVENTS_KEPT then
    redis.call('LTRIM', keys.happened(), -constants.EVENTS_KEPT, -1)
  end
end

return events
