-- Token bucket of items: fills at the rate per minute, and holds the items of one minute at most. It may go below zero,
-- so that a job of any size is admitted and the mean rate still holds.
-- @include clock
local token_bucket = {}

-- Return the items left now.
function token_bucket.read(key, rate, now)
  local bucket = redis.call('HMGET', key, 'left', 'at')
  return math.min(rate, tonumber(bucket[1] or rate) + (now - tonumber(bucket[2] or now)) * rate / 60)
end

-- Store the items left. The key expires once the bucket is full again.
function token_bucket.write(key, rate, now, left)
  redis.call('HSET', key, 'left', clock.stamp(left), 'at', clock.stamp(now))
  redis.call('EXPIRE', key, math.ceil((rate - left) * 60 / rate) + 1)
end

return token_bucket
