-- Before an engine batch: who may run? Claims requests, parks items that another chunk computes now, and records the batch.
-- ARGV  1 incarnation  2 token  3 deadline s  4.. chunk, number of items, then index and request hash ('' for none) of each
-- Returns one letter an item: r run it, w it waits for another's claim, x drop it (counted already, or its job is over).
-- Keeps: a request is claimed by one chunk; a parked item is its waiter's and no longer its chunk's; the recorded batch is what a
-- dead worker is blamed for.
local incarnation, token, verdicts = ARGV[1], ARGV[2], {}
local at_begin, owned = now(), false
local record = {'begun_at', stamp(at_begin), 'deadline_at', stamp(at_begin + tonumber(ARGV[3]))}
local at = 4
while at <= #ARGV do
  local chunk, number = ARGV[at], tonumber(ARGV[at + 1])
  local info = redis.call('HMGET', key_chunk(chunk), 'job', 'stage', 'token', 'items')
  local mine = info[3] == token and is_active(redis.call('HGET', key_job(info[1]), 'state'))
  owned = owned or mine
  local run, parked = {}, {}
  for offset = 0, number - 1 do
    local index, request = ARGV[at + 2 + offset * 2], ARGV[at + 3 + offset * 2]
    local verdict = 'x'
    if mine and not passed(info[1], info[2], index) then
      verdict = 'r'
      local owner = request ~= '' and redis.call('GET', key_claim(request))
      if request == '' or owner == chunk .. ' ' .. token then
        verdict = 'r'
      elseif not owner or redis.call('EXISTS', key_chunk(string.match(owner, '^%S+'))) == 0 then
        redis.call('SET', key_claim(request), chunk .. ' ' .. token, 'EX', 86400)
        redis.call('SADD', key_chunk_claims(chunk), request)
      else
        redis.call('SADD', key_waiters(request), info[1] .. '|' .. info[2] .. '|' .. index)
        redis.call('EXPIRE', key_waiters(request), 86400)
        parked[tonumber(index)] = true
        verdict = 'w'
      end
    end
    if verdict == 'r' then run[#run + 1] = tonumber(index) end
    verdicts[#verdicts + 1] = verdict
  end
  if next(parked) then
    local kept = {}
    for _, index in ipairs(expand(info[4])) do if not parked[index] then kept[#kept + 1] = index end end
    redis.call('HSET', key_chunk(chunk), 'items', compress(kept))
  end
  if #run > 0 then
    record[#record + 1] = chunk
    record[#record + 1] = compress(run)
  else
    redis.call('HDEL', key_batch(incarnation), chunk)
  end
  at = at + 2 + number * 2
end
redis.call('HDEL', key_batch(incarnation), 'late') -- that was the batch before
if owned then
  redis.call('HSET', key_batch(incarnation), unpack(record))
  redis.call('EXPIRE', key_batch(incarnation), 86400)
end
return table.concat(verdicts)
