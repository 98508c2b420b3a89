-- The trainer has announced a version.
-- ARGV  1 rollout  2 version
-- Returns the number of prompts begun.
local job, version = ARGV[1], tonumber(ARGV[2])
touch(job)
if version > tonumber(redis.call('HGET', key_rollout(job), 'version')) then new_version(job, version) end
return feed(job)
