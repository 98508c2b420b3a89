-- Remove the record of a worker that shuts down.
--
-- ARGV
--   1  name of the worker
--   2  incarnation
-- Returns: nothing.
-- Invariants:
--   * The record of a newer incarnation is never removed.
-- @allow-oom
local name, incarnation = ARGV[1], ARGV[2]
if redis.call('HGET', keys.worker(name), 'incarnation') == incarnation then
  redis.call('DEL', keys.worker(name))
  redis.call('SREM', keys.workers(), name)
end
