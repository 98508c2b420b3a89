-- Store the groups of consecutive items, before their job is created. The keys expire if the job is never created.
--
-- ARGV
--   1   temporary name that the job is stored under
--   2   TTL of the keys in seconds
--   3   index of the first item; every item belongs to the same page of the ledger
--   4   the group of each item, GROUP_DIGITS digits each
--   5.. group and ranges of its items, for each group
-- Returns: nothing.
-- @include groups
-- @include ranges
local staged, lifetime_s, first = ARGV[1], ARGV[2], tonumber(ARGV[3])
local page, at = math.floor(first / constants.PAGE_ITEMS), first % constants.PAGE_ITEMS * constants.GROUP_DIGITS
redis.call('SETRANGE', keys.job_groups(staged, page), at, ARGV[4])
redis.call('EXPIRE', keys.job_groups(staged, page), lifetime_s)
for argument = 5, #ARGV, 2 do
  local group, added = ARGV[argument], ARGV[argument + 1]
  local before = groups.members(staged, group)
  redis.call('HSET', keys.job_members(staged), group, before and (before .. ',' .. added) or added)
  redis.call('HINCRBY', keys.job_awaited(staged), group, ranges.count(added))
end
redis.call('EXPIRE', keys.job_members(staged), lifetime_s)
redis.call('EXPIRE', keys.job_awaited(staged), lifetime_s)
