-- Remove a job and every key of it.
--
-- ARGV
--   1  job id
-- Returns: 1, or 0 when the job is still runnable.
-- @allow-oom
-- @include removal
return removal.remove(ARGV[1]) and 1 or 0
