-- Charge a submit to the quotas of its bearer token, once it is over.
--
-- ARGV
--   1  name of the token
--   2  items per minute, or 0 for no limit
--   3  active jobs, or 0 for no limit
--   4  id of the submit
--   5  job id, or '' when the submit was refused
--   6  number of items that it took
--   7  seconds that the job counts as active, at most
-- Returns: nothing.
-- @include clock
-- @include token_bucket
local token, rate, most_jobs, submit_id, job_id = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local items, now = tonumber(ARGV[6]), clock.now()
if rate > 0 and items > 0 then
  local key = keys.token_items(token)
  token_bucket.write(key, rate, now, token_bucket.read(key, rate, now) - items)
end
if most_jobs > 0 then
  redis.call('ZREM', keys.token_jobs(token), submit_id)
  if job_id ~= '' then redis.call('ZADD', keys.token_jobs(token), now + ARGV[7], job_id) end
end
