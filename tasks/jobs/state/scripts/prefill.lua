-- Store outcomes found in the cache, before their job is created. The keys expire if the job is never created.
--
-- ARGV
--   1   temporary name that the job is stored under
--   2   stage
--   3   TTL of the keys in seconds
--   4.. index and outcome of each item
-- Returns: nothing.
-- @include passed
local staged, stage, lifetime_s = ARGV[1], ARGV[2], ARGV[3]
for at = 4, #ARGV, 2 do
  local index = ARGV[at]
  passed.set(staged, stage, index, 1)
  redis.call('EXPIRE', keys.job_passed(staged, stage, math.floor(index / constants.PAGE_ITEMS)), lifetime_s)
  redis.call('HSET', keys.job_outcomes(staged, 0), index, ARGV[at + 1])
end
redis.call('EXPIRE', keys.job_outcomes(staged, 0), lifetime_s)
