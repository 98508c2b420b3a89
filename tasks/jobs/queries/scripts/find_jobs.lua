-- Find a page of jobs that match a filter, newest first. Scans a bounded number of jobs inside the script: a filter
-- with few matches took twenty times as long when each page was read in a separate round trip.
--
-- ARGV
--   1  time to start from
--   2  id of the last job seen of that time, or ''
--   3  kind, or '' for any
--   4  state, or '' for any
--   5  number of jobs wanted
--   6  maximum number of jobs scanned
-- Returns: time and id of the last job scanned, both '' at the end of the list; then the ids of the matching jobs.
local PAGE = 200
local before, after, kind, state = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local wanted, most_looked_at = tonumber(ARGV[5]), tonumber(ARGV[6])
local found, looked_at, at, last = {}, 0, '', ''

local function fits(job_id)
  local info = redis.call('HMGET', keys.job(job_id), 'kind', 'state')
  return info[2] and (kind == '' or kind == info[1]) and (state == '' or state == info[2])
end

while true do
  local rows = redis.call('ZREVRANGEBYSCORE', keys.jobs(), before, '-inf', 'WITHSCORES', 'LIMIT', 0, PAGE)
  local fresh = 0
  for place = 1, #rows, 2 do
    local job_id, score = rows[place], rows[place + 1]
    -- Jobs of the same time are in reverse order of their ids: read again from that time, and skip jobs seen before.
    if not (after ~= '' and tonumber(score) == tonumber(before) and job_id >= after) then
      if #found == wanted or looked_at == most_looked_at then return {at, last, unpack(found)} end
      at, last, looked_at, fresh = score, job_id, looked_at + 1, fresh + 1
      if fits(job_id) then found[#found + 1] = job_id end
    end
  end
  if fresh == 0 or #rows < 2 * PAGE then return {'', '', unpack(found)} end
  before, after = at, last
end
