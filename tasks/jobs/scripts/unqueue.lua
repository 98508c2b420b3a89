-- Take back what was dispatched to a queue and not taken: its worker is gone, or it is paused or drained.
-- ARGV  1 queue  2 mode to set: paused, draining, '' to let it work again, 'same' to leave it
-- Returns the number of chunks taken back.
local queue, mode = ARGV[1], ARGV[2]
if mode == '' then redis.call('DEL', key_queue_mode(queue)) return 0 end
if mode ~= 'same' then redis.call('SET', key_queue_mode(queue), mode) end
local ids = redis.call('ZRANGE', key_dispatched(queue), 0, -1)
for _, id in ipairs(ids) do return_chunk(id) end
return #ids
