-- No more items for an open-ended job: it ends when those it has are settled.
-- ARGV  1 job
-- Returns the job's state, or '' when there is no such job.
local state = redis.call('HGET', key_job(ARGV[1]), 'state')
if not is_active(state) then return state or '' end
redis.call('HSET', key_job(ARGV[1]), 'open', '0')
return check_end(ARGV[1])
