-- Acknowledge a batch that was used, or return its samples to the queue. Idempotent.
--
-- ARGV
--   1  rollout id
--   2  batch
--   3  1 to acknowledge, 0 to return
-- Returns an empty list for an unknown rollout; else the number of samples (to acknowledge: 0 when the batch was
-- acknowledged before, -1 when it had returned to the queue); the number of prompts begun; then stubs of files to
-- delete.
-- Invariants:
--   * A batch is acknowledged at most once, and never after it returned to the queue.
-- @allow-oom
-- @include batches
-- @include feeding
-- @include rollouts
local rollout_id, batch, is_used = ARGV[1], ARGV[2], ARGV[3] == '1'
if redis.call('EXISTS', keys.rollout(rollout_id)) == 0 then return {} end
rollouts.touch(rollout_id)
batches.give_back_expired(rollout_id)
local number, stubs
if is_used then
  number, stubs = batches.acknowledge(rollout_id, batch)
else
  number, stubs = batches.give_back(rollout_id, batch), {}
end
return {number, feeding.feed(rollout_id), unpack(stubs)}
