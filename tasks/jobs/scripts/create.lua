-- Make a stored job visible and its items pending, once.
-- ARGV  1 job  2 number of fields  3.. field, value, ...  then stage and entry, ... for what is pending
-- Returns 1, or 0 when the job exists already (the request was repeated).
-- Keeps: a job is visible only with all of its payload; a job whose items are all settled is done when this returns.
local job, fields = ARGV[1], tonumber(ARGV[2])
if redis.call('EXISTS', key_job(job)) == 1 then return 0 end
local at = now()
redis.call('HSET', key_job(job), 'created_at', stamp(at), 'told_at', stamp(at), unpack(ARGV, 3, 2 + fields * 2))
redis.call('ZADD', key_jobs(), stamp(at), job)
for _, key in ipairs({key_job_blocks(job), key_job_outcomes(job), key_job_members(job), key_job_awaited(job),
  key_job_groups(job)}) do
  redis.call('PERSIST', key)
end
for _, stage in ipairs(stages_of(job)) do redis.call('PERSIST', key_job_passed(job, stage.name)) end
tell(job, 'queued')
for at_argument = 3 + fields * 2, #ARGV, 2 do push_pending(job, ARGV[at_argument], ARGV[at_argument + 1]) end
local limit = redis.call('HGET', key_job(job), 'deadline_s')
if limit and limit ~= '' then redis.call('ZADD', key_deadlines(), stamp(at + tonumber(limit)), job) end
check_end(job)
return 1
