-- The outcomes of a part were written to a file: they leave Redis. Safe to repeat.
-- ARGV  1 job  2 chunk  3 token  4 part  5 file, or '' to leave them where they are  6 1: the chunk is over
-- Returns 1 when the file is the part's now, 0 when it is not wanted; then the file that it replaces, or ''; then the job's state.
-- Keeps: an outcome leaves Redis with the step that names the file that has it; the earliest file wins.
local job, chunk, part, file = ARGV[1], ARGV[2], tonumber(ARGV[4]), ARGV[5]
local state, wanted, replaced = redis.call('HGET', key_job(job), 'state'), 0, ''
if is_active(state) and redis.call('HGET', key_chunk(chunk), 'token') == ARGV[3] then
  local before = redis.call('HGET', key_job_parts(job), part) or ''
  if file ~= '' and before == file then
    wanted = 1 -- the reply was lost
  elseif move_part(job, part, file) then
    wanted, replaced = 1, string.gsub(before, '^~', '')
  end
  state = check_end(job)
end
if ARGV[6] == '1' then drop_chunk(chunk) end
return {wanted, replaced, state or ''}
