-- More items for an open-ended job. Safe to repeat with its token.
-- ARGV  1 job  2 token  3.. payloads
-- Returns the index of the first one; -1 when the job takes no more.
-- Keeps: an item is pending with the step that makes it part of the job.
local job, token, number = ARGV[1], ARGV[2], #ARGV - 2
local before = redis.call('GET', key_job_append(job, token))
if before then return tonumber(before) end
local info = redis.call('HMGET', key_job(job), 'state', 'open', 'total', 'first')
if not is_active(info[1]) or info[2] ~= '1' then return -1 end
local first = tonumber(info[3])
for at = 0, number - 1 do redis.call('HSET', key_job_blocks(job), first + at, '[' .. ARGV[3 + at] .. ']') end
redis.call('HINCRBY', key_job(job), 'total', number)
redis.call('SET', key_job_append(job, token), first, 'EX', 3600)
push_pending(job, info[4], first .. '-' .. (first + number - 1))
return first
