-- Set the version of a rollout to its announced version, and begin prompts. If the announcement was rolled back
-- already, the target version of the devices counts.
--
-- ARGV
--   1  rollout id
-- Returns: the number of prompts begun.
-- @include feeding
-- @include rollouts
local rollout_id = ARGV[1]
rollouts.touch(rollout_id)
local announced = cjson.decode(redis.call('HGET', keys.rollout_versions(rollout_id), 'target')).number
if announced > tonumber(redis.call('HGET', keys.rollout(rollout_id), 'version')) then
  rollouts.set_version(rollout_id, announced)
end
return feeding.feed(rollout_id)
