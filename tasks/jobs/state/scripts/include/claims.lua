-- Claims: locks on requests, so that only one chunk computes a request at a time. An item of another chunk that needs
-- the same request waits until the claim is released.
-- @include pending
local claims = {}

-- Release the chunk's claim on a request. Items that waited for it are pending again; each finds the answer in the
-- cache, or claims the request itself.
function claims.release(chunk_id, request)
  redis.call('SREM', keys.chunk_claims(chunk_id), request)
  local owner = redis.call('GET', keys.claim(request))
  if owner and owner ~= chunk_id then return end
  redis.call('DEL', keys.claim(request))
  local waiters = redis.call('SMEMBERS', keys.waiters(request))
  redis.call('DEL', keys.waiters(request))
  for _, waiter in ipairs(waiters) do
    local job_id, stage, index = string.match(waiter, '^(.-)|(.-)|(%d+)$')
    pending.resume(job_id, stage, index)
  end
end

function claims.release_all(chunk_id)
  for _, request in ipairs(redis.call('SMEMBERS', keys.chunk_claims(chunk_id))) do claims.release(chunk_id, request) end
end

return claims
