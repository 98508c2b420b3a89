-- Make a stored job visible and its items pending, once.
-- ARGV  1 job  2 name its payload was stored under  3 number of fields  4.. field, value, ...  then 'stored' or '', then stage and
--       entry, ... pending
-- Returns 1, 0 when the job exists already (the request was repeated), or -1 when its files were swept away meanwhile.
-- Keeps: a job is visible only with all of its payload; a job whose items are all settled is done when this returns.
local job, staged, fields = ARGV[1], ARGV[2], tonumber(ARGV[3])
local exists, at = redis.call('EXISTS', key_job(job)) == 1, now()
if not exists and ARGV[4 + fields * 2] == 'stored' and not redis.call('ZSCORE', key_staging(), staged) then return -1 end
if not exists then
  redis.call('HSET', key_job(job), 'created_at', stamp(at), 'told_at', stamp(at), unpack(ARGV, 4, 3 + fields * 2))
end
local moves = {}
for _, key in ipairs({key_job_blocks, key_job_offsets, key_job_members, key_job_awaited}) do
  moves[#moves + 1] = {key(staged), key(job)}
end
moves[#moves + 1] = {key_job_outcomes(staged, 0), key_job_outcomes(job, 0)}
local stages = stages_of(job)
for page = 0, math.floor(facts(job).total / PAGE_ITEMS) do
  moves[#moves + 1] = {key_job_groups(staged, page), key_job_groups(job, page)}
  moves[#moves + 1] = {key_job_passed(staged, stages[1].name, page), key_job_passed(job, stages[1].name, page)}
end
for _, move in ipairs(moves) do
  if exists then
    redis.call('UNLINK', move[1])
  elseif redis.call('EXISTS', move[1]) == 1 then
    redis.call('RENAME', move[1], move[2])
    redis.call('PERSIST', move[2])
  end
end
if exists then return 0 end
redis.call('ZREM', key_staging(), staged)
redis.call('ZADD', key_jobs(), stamp(at), job)
local found = redis.call('HMGET', key_job(job), 'ok', 'cached')
count_total(1, 'jobs|' .. facts(job).kind)
count_total(items_of(job, found[1]), 'items|' .. facts(job).kind .. '|ok')
count_total(items_of(job, found[2]), 'cached|' .. facts(job).kind)
if facts(job).feeds then redis.call('SADD', key_rollouts(), job) end -- which are looked after from now on
tell(job, 'queued')
note(job, 'queued', {'total', items_of(job, facts(job).total), 'priority', redis.call('HGET', key_job(job), 'priority')})
for at_argument = 5 + fields * 2, #ARGV, 2 do push_pending(job, ARGV[at_argument], ARGV[at_argument + 1]) end
local limit = redis.call('HGET', key_job(job), 'deadline_s')
if limit and limit ~= '' then redis.call('ZADD', key_deadlines(), stamp(at + tonumber(limit)), job) end
check_end(job)
return 1
