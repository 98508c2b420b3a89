-- Count results of a chunk. Idempotent: the first result of an item and stage is counted, later results are ignored.
--
-- ARGV
--   1   job id
--   2   stage
--   3   chunk id
--   4   worker
--   5   seconds that the items took
--   6   1 when the chunk ends with this commit
--   7   lease_id of the chunk
--   8   number of items
--   9.. six values per item: index, status, error type, cached (1 or 0), next stage or '', outcome;
--       then the number of attachments, and three values for each: index, about (JSON), body;
--       then requests whose claims are released
-- An item of the status `retry` is not counted yet: it is pending again after a delay. In place of `cached` it has
-- JSON: {"delay_s": ..., "attempts": ..., "rests": true if the whole stage is suspended until then}. Its outcome is
-- counted if a deadline would pass before the retry. An attachment is for the hook `committed` of the job's kind, and
-- is passed to the hook only if its item is counted now.
-- Returns: the number of items counted now, and the job's state.
-- Invariants:
--   * An item is counted once per stage, and only for the holder of its chunk's lease. A call of another process
--     changes nothing.
--   * When a chunk ends, each of its items is counted, away or pending.
--   * The end of a job is a state, written in the same step as the count that completes the job.
-- @allow-oom
-- @include away
-- @include chunks
-- @include claims
-- @include clock
-- @include jobs
-- @include passed
-- @include pending
-- @include ranges
-- @include returns
-- @include tally
-- @include totals
local FIELDS, FIRST_ITEM = 6, 9
local job_id, stage, chunk_id, worker = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local seconds, is_over, lease_id, number = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7], tonumber(ARGV[8])
local job, chunk = keys.job(job_id), keys.chunk(chunk_id)
local first_attachment = FIRST_ITEM + number * FIELDS + 1
local first_request = first_attachment + 3 * tonumber(ARGV[first_attachment - 1])
local results = tally.open(job_id, stage)

-- Park an item until its retry is due. Returns false when a deadline would pass before the retry.
local function retry(index, wish, ends_at, item_deadline_s)
  local now = clock.now()
  local due = now + wish.delay_s
  local before = redis.call('HGET', keys.job_attempts(job_id), index)
  local begun_at = before and cjson.decode(before).begun_at
    or tonumber(redis.call('HGET', keys.batch(redis.call('HGET', chunk, 'incarnation')), 'begun_at') or nil)
  local is_too_late = due > ends_at or (item_deadline_s and begun_at and due > begun_at + item_deadline_s)
  if is_too_late or passed.is_set(job_id, stage, index) then return false end
  redis.call('HSET', keys.job_attempts(job_id), index,
    string.format('{"attempts":%d,"begun_at":%.6f}', wish.attempts, begun_at or now))
  redis.call('ZADD', keys.parked(), clock.stamp(due), job_id .. '|' .. stage .. '|' .. index)
  away.add(job_id, stage, index, '')
  if wish.rests then pending.rest(job_id, stage, due) end
  return true
end

-- Return the attachments of items that are counted now: a list of {index, about, body}.
local function counted_attachments()
  local attachments, is_counted = {}, {}
  if first_attachment == first_request then return attachments end
  for _, index in ipairs(results.counted) do is_counted[index] = true end
  for at = first_attachment, first_request - 1, 3 do
    if is_counted[ARGV[at]] then attachments[#attachments + 1] = {ARGV[at], ARGV[at + 1], ARGV[at + 2]} end
  end
  return attachments
end

local info = redis.call('HMGET', job, 'state', 'item_deadline_s', 'pool:' .. stage, 'cost:' .. stage)
local held = redis.call('HMGET', chunk, 'lease_id', 'items', 'out')
local state, item_deadline_s, pool, cost = info[1], tonumber(info[2] or ''), info[3], info[4]
-- Only the holder changes anything: another caller has lost its lease, to recovery, or because Redis lost the take.
if held[1] ~= lease_id then return {0, state or ''} end
local settled = 0
if jobs.is_runnable(state) then
  local ends_at, retried = nil, 0
  for at = FIRST_ITEM, FIRST_ITEM + (number - 1) * FIELDS, FIELDS do
    local is_parked = false
    if ARGV[at + 1] == 'retry' then
      ends_at = ends_at or tonumber(redis.call('ZSCORE', keys.deadlines(), job_id) or math.huge)
      is_parked = retry(ARGV[at], cjson.decode(ARGV[at + 3]), ends_at, item_deadline_s)
    end
    if is_parked then retried = retried + 1 else tally.add(results, unpack(ARGV, at, at + FIELDS - 1)) end
  end
  if #results.counted > 0 then
    local kind = jobs.facts(job_id).kind
    redis.call('HINCRBY', keys.job_workers(job_id), worker, #results.counted)
    redis.call('HINCRBYFLOAT', keys.job_workers(job_id), worker .. ':s', seconds)
    totals.count(#results.counted, 'worked|' .. kind .. '|' .. pool)
    totals.count(math.floor(seconds * 1000000), 'worked_s|' .. kind .. '|' .. pool)
    if seconds > 0 then
      -- Exponential moving average with weight 1/2: follows a change within a few chunks, and does not jump at a single
      -- odd item.
      redis.call('HSET', job, 'cost:' .. stage, (tonumber(cost) + seconds / number) / 2)
    end
  end
  totals.count(retried, 'retries|' .. jobs.facts(job_id).kind)
  state = tally.close(results, counted_attachments())
  settled = #results.counted + retried
end
local out = tonumber(held[3] or 0)
if out > 0 and number > 0 then chunks.release_slots(chunk_id, job_id, stage, math.min(out, number)) end
for at = first_request, #ARGV do claims.release(chunk_id, ARGV[at]) end
if is_over then
  -- Usually the commit has every item of its chunk. Otherwise the others were counted before, or are pending again:
  -- Redis may have lost the commits that counted them.
  local left = {}
  if settled < ranges.count(held[2]) and jobs.is_runnable(state) then left = returns.left(job_id, stage, held[2]) end
  claims.release_all(chunk_id)
  chunks.drop(chunk_id)
  if #left > 0 then returns.put_back(job_id, stage, left) end
end
return {#results.counted, state or ''}
