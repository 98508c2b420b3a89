-- Count the pending items, which wait for a chunk.
--
-- ARGV
--   1   maximum number of jobs read per sorted set; each further job counts as one item
--   2.. keys of the sorted sets `ready`
-- Returns: the number of items.
local most = tonumber(ARGV[1])
local waiting = 0
for at = 2, #ARGV do
  for _, member in ipairs(redis.call('ZRANGE', ARGV[at], 0, most - 1)) do
    local job_id, stage = string.match(member, '^(.-)|(.*)$')
    waiting = waiting + tonumber(redis.call('HGET', keys.job(job_id), 'pending:' .. stage) or 0)
  end
  waiting = waiting + math.max(0, redis.call('ZCARD', ARGV[at]) - most)
end
return waiting
