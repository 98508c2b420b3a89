-- Return a batch to the queue without its lost samples, whose bodies do not exist any more: these are dropped and
-- counted. Idempotent.
--
-- ARGV
--   1   rollout id
--   2   batch
--   3.. lost members of the batch
-- Returns: the number of samples dropped; 0 when the batch is not leased any more.
-- Invariants:
--   * A sample is dropped only by the holder of its batch.
-- @include batches
-- @include commands
-- @include rollouts
-- @include samples
local rollout_id, batch, lost, number = ARGV[1], ARGV[2], {}, 0
if batches.give_back(rollout_id, batch) == 0 then return 0 end
for at = 3, #ARGV do
  lost[#lost + 1] = ARGV[at]
  number = number + samples.size_of(ARGV[at])
end
commands.in_pages('ZREM', keys.rollout_queue(rollout_id), lost)
samples.forget(rollout_id, lost)
rollouts.count(rollout_id, 'queued', -number)
rollouts.count(rollout_id, 'lost', number)
return number
