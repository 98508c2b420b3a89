-- Is this process past the deadline of its batch? Then it is marked so, for whoever buries it.
-- ARGV  1 incarnation
-- Returns 1 or 0.
local deadline = redis.call('HGET', key_batch(ARGV[1]), 'deadline_at')
if not deadline or tonumber(deadline) > now() then return 0 end
redis.call('HSET', key_batch(ARGV[1]), 'late', '1')
return 1
