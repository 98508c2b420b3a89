-- Check whether a process is past the deadline of its batch. A late batch is marked, so that its items fail as timed
-- out when the process is killed.
--
-- ARGV
--   1  incarnation
-- Returns: 1 when it is late, else 0.
-- @allow-oom
-- @include clock
local batch = keys.batch(ARGV[1])
local deadline = redis.call('HGET', batch, 'deadline_at')
if not deadline or tonumber(deadline) > clock.now() then return 0 end
redis.call('HSET', batch, 'late', '1')
return 1
