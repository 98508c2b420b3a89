-- Run the hook `tend` of each kind that has this hook, for periodic maintenance.
--
-- ARGV
--   1  idle timeout in seconds: kinds whose jobs are used from outside, such as rollouts, end an unused job after it
-- Returns: nothing.
-- @allow-oom
-- @hooks
local idle_s = tonumber(ARGV[1])
for _, kind_hooks in pairs(hooks) do
  if kind_hooks.tend then kind_hooks.tend(idle_s) end
end
