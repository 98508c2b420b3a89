-- Run the regular upkeep of kinds that have any.
--
-- ARGV
--   1  seconds after which a job that nobody uses is ended, for kinds whose jobs are used from outside
-- Returns: nothing.
-- @hooks
local idle_s = tonumber(ARGV[1])
for _, kind_hooks in pairs(hooks) do
  if kind_hooks.tend then kind_hooks.tend(idle_s) end
end
