-- End an active job at once. Items without an outcome read as cancelled; nothing loops over them.
-- ARGV  1 job
-- Returns the job's state, or '' when there is no such job.
local state = redis.call('HGET', key_job(ARGV[1]), 'state')
if is_active(state) or state == 'reopening' then
  end_job(ARGV[1], 'cancelled', 'cancelled')
  return 'cancelled'
end
return state or ''
