-- Put bundles of samples from a client into the queue, atomically. Idempotent by put_id, for ten minutes.
--
-- ARGV
--   1   rollout id
--   2   put_id
--   3   number of samples in all bundles
--   4.. about (JSON, see samples.lua) and body of each bundle
-- Returns: 1 when the samples are in the queue, 0 when it has no room for them, -1 when the rollout has ended, -2 for
-- an unknown rollout; then the number of queued samples.
-- Invariants:
--   * A put never makes the queue, together with the samples in progress, exceed its limit. A put that does not fit is
--     refused, not dropped.
-- @include batches
-- @include clock
-- @include jobs
-- @include rollouts
-- @include samples
local IDS_KEPT_S = 600
local rollout_id, put_id, number = ARGV[1], ARGV[2], tonumber(ARGV[3])
local puts, queued = keys.rollout_puts(rollout_id), redis.call('HGET', keys.rollout(rollout_id), 'queued')
if not queued then return {-2, 0} end
if redis.call('ZSCORE', puts, put_id) then return {1, tonumber(queued)} end
if not jobs.is_runnable(jobs.state(rollout_id)) then return {-1, 0} end
rollouts.touch(rollout_id)
batches.give_back_expired(rollout_id)
local config = rollouts.config(rollout_id)
queued = tonumber(config.queued)
local expected = queued + rollouts.in_progress(rollout_id, config) + number
if expected > tonumber(config.max_queue_size) then return {0, queued} end
local bundles, now = {}, clock.now()
for at = 4, #ARGV, 2 do bundles[#bundles + 1] = {ARGV[at], ARGV[at + 1]} end
samples.put(rollout_id, bundles)
redis.call('ZADD', puts, clock.stamp(now), put_id)
redis.call('ZREMRANGEBYSCORE', puts, '-inf', clock.stamp(now - IDS_KEPT_S))
return {1, queued + number}
