-- Heartbeat of a worker: write or renew its record, which is also the lock on the worker's name.
--
-- ARGV
--   1   name of the worker
--   2   incarnation
--   3   launcher
--   4   TTL of the record in ms
--   5.. fields and values of the record
-- Returns: nothing when the worker is announced; else host and pid of the live worker that holds the name.
-- Invariants:
--   * Only one live incarnation has a name. A launcher may replace its own worker at once, since it starts a new worker
--     only after the old worker has ended.
--   * A record expires when the heartbeats stop.
-- @allow-oom
-- @include clock
local name, incarnation, launcher = ARGV[1], ARGV[2], ARGV[3]
local record = keys.worker(name)
local holder = redis.call('HMGET', record, 'incarnation', 'launcher', 'host', 'pid', 'beat_at')
-- After the clock was set back, the TTL of a record is longer than it should be.
local is_live = clock.now() - tonumber(holder[5] or 0) <= tonumber(ARGV[4]) / 1000
if holder[1] and holder[1] ~= incarnation then
  if holder[2] ~= launcher and is_live then return {holder[3], holder[4]} end
  redis.call('DEL', record)
end
redis.call('HSET', record, 'beat_at', clock.stamp(clock.now()), unpack(ARGV, 5))
redis.call('PEXPIRE', record, ARGV[4])
redis.call('SADD', keys.workers(), name)
return {}
