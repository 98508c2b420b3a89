-- The trainer has announced a version. It may have been taken back already: what counts is which one devices are to hold.
-- ARGV  1 rollout
-- Returns the number of prompts begun.
local job = ARGV[1]
touch(job)
local version = cjson.decode(redis.call('HGET', key_rollout_versions(job), 'target')).number
if version > tonumber(redis.call('HGET', key_rollout(job), 'version')) then new_version(job, version) end
return feed(job)
