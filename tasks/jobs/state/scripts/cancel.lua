-- Cancel an active job at once, without a loop over its items: items without an outcome read as cancelled.
--
-- ARGV
--   1  job id
-- Returns: the job's state, or '' when the job does not exist.
-- @allow-oom
-- @include endings
-- @include jobs
local job_id = ARGV[1]
local state = jobs.state(job_id)
if not constants.ACTIVE[state or ''] then return state or '' end
endings.end_job(job_id, constants.CANCELLED, 'cancelled')
return constants.CANCELLED
