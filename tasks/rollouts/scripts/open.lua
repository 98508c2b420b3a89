-- Store the limits of a new rollout after its job was created, and begin prompts. Idempotent.
--
-- ARGV
--   1   rollout id
--   2   version of the trainer
--   3.. field and value of each limit
-- Returns: the number of prompts begun.
-- @include clock
-- @include feeding
local rollout_id, version, now = ARGV[1], ARGV[2], clock.stamp(clock.now())
local rollout = keys.rollout(rollout_id)
local COUNTERS = {'queued', 'leased', 'put', 'handed', 'acknowledged', 'returned', 'dropped', 'stale', 'partial',
  'generating', 'since', 'number', 'pauses', 'resumes', 'held', 'max_partial_span', 'taken_before'}
if redis.call('EXISTS', rollout) == 0 then
  for _, name in ipairs(COUNTERS) do redis.call('HSET', rollout, name, 0) end
  redis.call('HSET', rollout, 'version', version, 'opened_at', now, 'version_at', now, 'touched_at', now,
    unpack(ARGV, 3))
end
return feeding.feed(rollout_id)
