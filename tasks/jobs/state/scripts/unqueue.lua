-- Undo the dispatch of chunks that wait on a queue and that no worker has taken, because the queue's worker is gone, or
-- the queue is paused or drained. Their items are pending again.
--
-- ARGV
--   1  queue
--   2  mode to set: `paused`, `draining`, '' to open the queue again, or `same` to keep its mode
-- Returns: the number of chunks taken back.
-- @allow-oom
-- @include chunks
local queue, mode = ARGV[1], ARGV[2]
if mode == '' then
  redis.call('DEL', keys.queue_mode(queue))
  return 0
end
if mode ~= 'same' then redis.call('SET', keys.queue_mode(queue), mode) end
local chunk_ids = redis.call('ZRANGE', keys.dispatched(queue), 0, -1)
for _, chunk_id in ipairs(chunk_ids) do chunks.undo_dispatch(chunk_id) end
return #chunk_ids
