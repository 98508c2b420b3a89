-- Before a job is created: a page of its items and the groups they belong to. The keys lapse if the job is never created.
-- ARGV  1 job  2 lifetime s  3 index of the first item  4 the items' groups, GROUP_DIGITS each  5.. group, ranges of its items, ...
local job, first = ARGV[1], tonumber(ARGV[3])
local page, at = math.floor(first / PAGE_ITEMS), first % PAGE_ITEMS
redis.call('SETRANGE', key_job_groups(job, page), at * GROUP_DIGITS, ARGV[4])
redis.call('EXPIRE', key_job_groups(job, page), ARGV[2])
for argument = 5, #ARGV, 2 do
  local group, ranges = ARGV[argument], ARGV[argument + 1]
  local members = redis.call('HGET', key_job_members(job), group)
  redis.call('HSET', key_job_members(job), group, members and (members .. ',' .. ranges) or ranges)
  redis.call('HINCRBY', key_job_awaited(job), group, count(ranges))
end
redis.call('EXPIRE', key_job_members(job), ARGV[2])
redis.call('EXPIRE', key_job_awaited(job), ARGV[2])
