-- Read the depth of queues and pools, and the age of the oldest waiting work.
--
-- ARGV
--   1   maximum number of chunks read per queue
--   2   maximum number of jobs read per pool and priority
--   3   number of queues that follow; 0 for every queue that ever had work
--   4.. queues; then pairs of pool and priority
-- Returns five values:
--   1  the time
--   2  the number of jobs that have not ended
--   3  per queue: name, waiting chunks, items in them, dispatched_at of the oldest, running chunks, mode
--   4  per pool and priority: pool, priority, jobs, items, created_at of the oldest job, last time the longest-waiting
--      job was served
--   5  ids of the jobs seen
-- A time is '' for a queue or pool where no work waits.
-- @include clock
local most_chunks, most_jobs, number = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local queues, pools, job_ids = {}, {}, {}

local function append(rows, ...)
  for _, value in ipairs({...}) do rows[#rows + 1] = value end
end

-- Return the earlier of two times; '' and nil mean that the time is unknown.
local function earlier(one, other)
  if not other then return one end
  return (one == '' or tonumber(other) < tonumber(one)) and other or one
end

for _, queue in ipairs(number == 0 and redis.call('SMEMBERS', keys.queues()) or {unpack(ARGV, 4, 3 + number)}) do
  local items, oldest = 0, ''
  for _, chunk_id in ipairs(redis.call('ZRANGE', keys.dispatched(queue), 0, most_chunks - 1)) do
    local chunk = redis.call('HMGET', keys.chunk(chunk_id), 'count', 'job_id')
    items = items + tonumber(chunk[1] or 0)
    append(job_ids, chunk[2] or nil)
  end
  for rank = 0, #constants.PRIORITIES - 1 do -- the first chunk of each priority is its oldest
    local above = string.format('%.0f', rank * constants.PRIORITY_SPAN)
    local below = string.format('(%.0f', (rank + 1) * constants.PRIORITY_SPAN)
    local chunk_id = redis.call('ZRANGEBYSCORE', keys.dispatched(queue), above, below, 'LIMIT', 0, 1)[1]
    oldest = earlier(oldest, chunk_id and redis.call('HGET', keys.chunk(chunk_id), 'dispatched_at'))
  end
  append(queues, queue, redis.call('ZCARD', keys.dispatched(queue)), items, oldest,
    redis.call('SCARD', keys.running(queue)), redis.call('GET', keys.queue_mode(queue)) or 'open')
end
for at = 4 + number, #ARGV, 2 do
  local ready, items, oldest, unserved = keys.ready(ARGV[at], ARGV[at + 1]), 0, '', ''
  local all = redis.call('ZCARD', ready)
  for _, member in ipairs(redis.call('ZRANGE', ready, 0, most_jobs - 1)) do
    local job_id, stage = string.match(member, '^(.-)|(.*)$')
    local info = redis.call('HMGET', keys.job(job_id), 'pending:' .. stage, 'created_at', 'served_at:' .. stage)
    items, oldest = items + tonumber(info[1] or 0), earlier(oldest, info[2])
    unserved = earlier(unserved, info[3] or info[2])
    append(job_ids, job_id)
  end
  append(pools, ARGV[at], ARGV[at + 1], all, items + math.max(0, all - most_jobs), oldest, unserved)
end
local active = redis.call('ZCARD', keys.jobs()) - redis.call('ZCARD', keys.expiry())
return {clock.stamp(clock.now()), active, queues, pools, job_ids}
