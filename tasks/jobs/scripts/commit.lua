-- Count results of one chunk. First result of an item and stage wins; safe to repeat.
-- ARGV  1 job  2 stage  3 chunk  4 worker  5 seconds the items took  6 1: the chunk is over  7 token
--       8 number of items  9.. index, status, error type, cached, next stage, outcome of each  then requests to release
--       A status of `retry` settles nothing yet: the item is pending again after a while; `cached` is "<seconds> <attempts>", and
--       `rests` when the stage is to rest so long. Its outcome is for the case that a deadline would pass before that.
-- Returns items counted now, the job's state.
-- Keeps: every item counted once, and only for who holds its chunk; the job's end is a state written with the count that
-- completes it.
local job, stage, chunk, worker, seconds = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local number, tally = tonumber(ARGV[8]), open_tally(job, stage)
local about = redis.call('HMGET', key_job(job), 'state', 'item_deadline_s', 'pool:' .. stage)
local state, limit_s, retried = about[1], tonumber(about[2] or ''), 0
local ends_at = tonumber(redis.call('ZSCORE', key_deadlines(), job) or math.huge)

local function may_retry(index, when)
  local delay, attempts, rests = string.match(when, '^(%S+) (%d+) ?(%a*)$')
  local due = now() + tonumber(delay)
  local begun = string.match(redis.call('HGET', key_job_attempts(job), index) or '', ' (%S+)$')
    or redis.call('HGET', key_batch(redis.call('HGET', key_chunk(chunk), 'incarnation')), 'begun_at')
  if passed(job, stage, index) or due > ends_at or (limit_s and begun and due > tonumber(begun) + limit_s) then return false end
  redis.call('HSET', key_job_attempts(job), index, attempts .. ' ' .. (begun or stamp(now())))
  redis.call('ZADD', key_parked(), stamp(due), job .. '|' .. stage .. '|' .. index)
  if rests ~= '' then rest(job, stage, due) end
  return true
end

if is_active(state) and redis.call('HGET', key_chunk(chunk), 'token') == ARGV[7] then
  for item = 0, number - 1 do
    local at = 9 + item * 6
    if ARGV[at + 1] == 'retry' and may_retry(ARGV[at], ARGV[at + 3]) then retried = retried + 1
    else settle(tally, unpack(ARGV, at, at + 5)) end
  end
  if #tally.counted > 0 then
    redis.call('HINCRBY', key_job_workers(job), worker, #tally.counted)
    redis.call('HINCRBYFLOAT', key_job_workers(job), worker .. ':s', seconds)
    count_total(#tally.counted, 'worked|' .. facts(job).kind .. '|' .. about[3])
    count_total(math.floor(seconds * 1000000), 'worked_s|' .. facts(job).kind .. '|' .. about[3])
    if seconds > 0 then
      -- Half old, half new: follows a change within a few chunks without jumping at one odd item.
      local cost = tonumber(redis.call('HGET', key_job(job), 'cost:' .. stage))
      redis.call('HSET', key_job(job), 'cost:' .. stage, (cost + seconds / number) / 2)
    end
  end
  count_total(retried, 'retries|' .. facts(job).kind)
  state = close_tally(tally)
end
local out = tonumber(redis.call('HGET', key_chunk(chunk), 'out') or 0)
if out > 0 and number > 0 then come_in(chunk, job, stage, math.min(out, number)) end
for at = 9 + number * 6, #ARGV do release_claim(chunk, ARGV[at]) end
if ARGV[6] == '1' then
  release_claims(chunk)
  drop_chunk(chunk)
end
return {#tally.counted, state or ''}
