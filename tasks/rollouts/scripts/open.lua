-- A new rollout: what bounds it. Its job exists already. Safe to repeat.
-- ARGV  1 rollout  2 version  3.. field, value, ...
-- Returns the number of prompts begun.
local job, version, at = ARGV[1], ARGV[2], stamp(now())
if redis.call('EXISTS', key_rollout(job)) == 0 then
  for _, name in ipairs({'queued', 'leased', 'put', 'handed', 'acknowledged', 'returned', 'dropped', 'stale', 'partial',
    'generating', 'since', 'number', 'pauses', 'resumes', 'held', 'max_partial_span', 'taken_before'}) do
    redis.call('HSET', key_rollout(job), name, 0)
  end
  redis.call('HSET', key_rollout(job), 'version', version, 'opened_at', at, 'version_at', at,
    'touched_at', at, unpack(ARGV, 3))
end
return feed(job)
