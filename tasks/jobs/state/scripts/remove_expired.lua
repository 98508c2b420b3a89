-- Remove jobs whose time to live is over.
--
-- ARGV
--   1  maximum number of jobs
-- Returns: the number of jobs that were due; fewer than ARGV[1] when none is left.
-- @allow-oom
-- @include clock
-- @include removal
local due = redis.call('ZRANGEBYSCORE', keys.expiry(), '-inf', clock.stamp(clock.now()), 'LIMIT', 0, ARGV[1])
for _, job_id in ipairs(due) do
  if not removal.remove(job_id) then redis.call('ZREM', keys.expiry(), job_id) end
end
return #due
