-- Put bundles from outside into the queue, all or none. Safe to repeat with its token.
-- ARGV  1 rollout  2 token  3 samples in all  4.. bundles
-- Returns whether they are there (1), there is no room for them (0), the rollout is over (-1), or there is none (-2); then how many samples wait.
-- Keeps: the queue never has more than its bound together with what is under way to it; what does not fit is refused, not dropped.
local TOKENS_KEPT_S = 600
local job, token, samples = ARGV[1], ARGV[2], tonumber(ARGV[3])
local config = config_of(job)
if not config.queued then return {-2, 0} end
if redis.call('ZSCORE', key_rollout_puts(job), token) then return {1, tonumber(config.queued)} end
if not is_active(redis.call('HGET', key_job(job), 'state')) then return {-1, 0} end
touch(job)
give_back_lapsed(job)
config = config_of(job)
if tonumber(config.queued) + under_way(job, config) + samples > tonumber(config.max_queue_size) then
  return {0, tonumber(config.queued)}
end
put_bundles(job, {unpack(ARGV, 4)})
redis.call('ZADD', key_rollout_puts(job), stamp(now()), token)
redis.call('ZREMRANGEBYSCORE', key_rollout_puts(job), '-inf', stamp(now() - TOKENS_KEPT_S))
return {1, tonumber(config.queued) + samples}
