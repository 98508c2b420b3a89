-- Check the quotas of a bearer token before a submit, and reserve an active job for it.
--
-- ARGV
--   1  name of the token
--   2  items per minute, or 0 for no limit
--   3  active jobs, or 0 for no limit
--   4  id of this submit, which starts with `~`
--   5  seconds that the submit may take
--   6  seconds that an active job counts, at most
-- Returns: nothing when the submit is admitted; else the quota that is exceeded, `items` or `jobs`, and the seconds
-- until the submit may be tried again ('' for `jobs`).
-- Invariants:
--   * A submit that is refused changes nothing.
--   * A job that has ended, or is gone, does not count as active.
-- @include clock
-- @include token_bucket
local token, rate, most_jobs, submit_id = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local now = clock.now()
if rate > 0 then
  local left = token_bucket.read(keys.token_items(token), rate, now)
  if left < 1 then return {'items', string.format('%.3f', (1 - left) * 60 / rate)} end
end
if most_jobs > 0 then
  local active = keys.token_jobs(token)
  redis.call('ZREMRANGEBYSCORE', active, '-inf', now)
  for _, id in ipairs(redis.call('ZRANGE', active, 0, -1)) do
    if string.sub(id, 1, 1) ~= '~' and not constants.ACTIVE[redis.call('HGET', keys.job(id), 'state') or ''] then
      redis.call('ZREM', active, id)
    end
  end
  if redis.call('ZCARD', active) >= most_jobs then return {'jobs', ''} end
  redis.call('ZADD', active, now + ARGV[5], submit_id)
  redis.call('EXPIRE', active, ARGV[6])
end
return {}
