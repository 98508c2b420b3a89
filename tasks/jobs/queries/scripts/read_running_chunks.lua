-- Read the chunks that workers have taken.
--
-- ARGV
--   1   maximum number of chunks per queue
--   2.. queues; without any, every queue that may hold chunks
-- Returns: nine values per chunk: queue, chunk id, worker, job id, kind, priority, stage, number of items, taken_at.
local most = tonumber(ARGV[1])
local rows, queues = {}, {unpack(ARGV, 2)}
if #queues == 0 then queues = redis.call('SMEMBERS', keys.queues()) end
for _, queue in ipairs(queues) do
  for number, chunk_id in ipairs(redis.call('SMEMBERS', keys.running(queue))) do
    if number > most then break end
    local chunk = redis.call('HMGET', keys.chunk(chunk_id), 'worker', 'job_id', 'stage', 'count', 'taken_at')
    local job = chunk[2] and redis.call('HMGET', keys.job(chunk[2]), 'kind', 'priority')
    if job and job[1] then
      local row = {queue, chunk_id, chunk[1], chunk[2], job[1], job[2], chunk[3], chunk[4], chunk[5]}
      for _, value in ipairs(row) do rows[#rows + 1] = value end
    end
  end
end
return rows
