-- Pause or resume the generation of a rollout. Dispatched chunks of its first stage return to the pending list; running
-- chunks are finished; later stages continue.
--
-- ARGV
--   1  rollout id
--   2  1 to pause, 0 to resume, '' to only read the state
-- Returns: 1 while generation is paused, else 0; the number of running chunks of the first stage; the number of prompts
-- begun.
-- @include chunks
-- @include clock
-- @include events
-- @include feeding
-- @include pending
-- @include rollouts
local FOREVER = 1e12
local rollout_id, wish = ARGV[1], ARGV[2]
local job, rollout = keys.job(rollout_id), keys.rollout(rollout_id)
local first, begun = redis.call('HGET', job, 'first'), 0
local is_held = redis.call('HGET', rollout, 'held') == '1'

-- Return the chunks of the first stage that are in the given state.
local function chunks_of(state)
  local found = {}
  for _, chunk_id in ipairs(redis.call('SMEMBERS', keys.job_chunks(rollout_id))) do
    local info = redis.call('HMGET', keys.chunk(chunk_id), 'state', 'stage')
    if info[1] == state and info[2] == first then found[#found + 1] = chunk_id end
  end
  return found
end

if wish ~= '' then rollouts.touch(rollout_id) end
if wish == '1' and not is_held then
  is_held = true
  redis.call('HSET', rollout, 'held', 1)
  rollouts.count(rollout_id, 'pauses', 1)
  rollouts.set_clock(rollout_id, false)
  redis.call('HSET', job, 'rests_until:' .. first, clock.stamp(FOREVER)) -- so that `make_ready` does nothing
  pending.make_unready(rollout_id, first)
  for _, chunk_id in ipairs(chunks_of(constants.DISPATCHED)) do chunks.undo_dispatch(chunk_id) end
  events.publish(rollout_id, 'paused')
elseif wish == '0' and is_held then
  is_held = false
  redis.call('HSET', rollout, 'held', 0)
  rollouts.count(rollout_id, 'resumes', 1)
  redis.call('HDEL', job, 'rests_until:' .. first)
  pending.make_ready_if_any(rollout_id, first)
  rollouts.set_clock(rollout_id, rollouts.is_busy(rollouts.config(rollout_id)))
  begun = feeding.feed(rollout_id)
  events.publish(rollout_id, 'resumed')
end
return {is_held and 1 or 0, #chunks_of(constants.RUNNING), begun}
