-- Before a job is created: outcomes that the cache had. Written in pages; the keys lapse if the job is never created.
-- ARGV  1 job  2 stage  3 lifetime s  4.. index, outcome, ...
local job, stage = ARGV[1], ARGV[2]
for at = 4, #ARGV, 2 do
  pass(job, stage, ARGV[at], 1)
  redis.call('EXPIRE', key_job_passed(job, stage, math.floor(ARGV[at] / PAGE_ITEMS)), ARGV[3])
  redis.call('HSET', key_job_outcomes(job, 0), ARGV[at], ARGV[at + 1])
end
redis.call('EXPIRE', key_job_outcomes(job, 0), ARGV[3])
