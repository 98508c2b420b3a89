-- A batch was used, or goes back. Safe to repeat.
-- ARGV  1 rollout  2 batch  3 1: acknowledge, 0: give back
-- Returns nothing when there is no such rollout; else the number of samples (of an acknowledged one 0 when that was done before, -1 when it had gone back already); prompts
-- begun; then stubs of files that nobody needs any more.
local job, batch = ARGV[1], ARGV[2]
if redis.call('EXISTS', key_rollout(job)) == 0 then return {} end
touch(job)
give_back_lapsed(job)
local number, files = 0, {}
if ARGV[3] == '1' then number, files = acknowledge(job, batch) else number = give_back(job, batch) end
return {number, feed(job), unpack(files)}
