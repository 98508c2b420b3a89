-- Hand a batch out under a lease; before that, acknowledge the consumer's last one.
-- ARGV  1 rollout  2 batch to be made  3 samples wanted  4 samples without which there is no batch  5 current version, or ''
--       6 1: bundles stay whole  7 consumer, or ''  8 lease s  9 batch to acknowledge, or ''  10 seconds the consumer has waited
--       11 bytes of bodies that come with the answer
-- Returns nothing when there is no such rollout; else the batch, or ''; then samples acknowledged (0: before; -1: it had gone back), samples dropped, samples that wait,
-- prompts begun, version, number of files; then the files' stubs; then member, head and body of each ('' when it did not fit).
-- Keeps: a sample is in one batch at a time; none of it is staler than the rollout allows, by the version that is given; a consumer
-- with a name holds one batch: what it held and did not acknowledge is back in the queue, the first to be handed out.
local job, batch, wanted, least = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local whole, consumer, queue = ARGV[6] == '1', ARGV[7], key_rollout_queue(job)
if redis.call('EXISTS', key_rollout(job)) == 0 then return {} end
touch(job)
give_back_lapsed(job)
local acknowledged, files = 0, {}
if ARGV[9] ~= '' then acknowledged, files = acknowledge(job, ARGV[9]) end
if consumer ~= '' then
  local held = redis.call('HGET', key_rollout_consumers(job), consumer)
  if held then give_back(job, held) end
end
local version = tonumber(redis.call('HGET', key_rollout(job), 'version'))
local current = tonumber(ARGV[5]) or version
if current > version then new_version(job, current) version = current end
local most = tonumber(redis.call('HGET', key_rollout(job), 'max_staleness') or '')

local taken, heads, stale, split, got, dropped, at = {}, {}, {}, {}, 0, 0, 0
while got < wanted do
  local members = redis.call('ZRANGE', queue, at, at + 255)
  if #members == 0 then break end
  local numbers = {}
  for place, member in ipairs(members) do numbers[place] = number_of(member) end
  local found = redis.call('HMGET', key_rollout_heads(job), unpack(numbers))
  for place, member in ipairs(members) do
    local size = size_of(member)
    if most and current - tonumber(string.match(found[place], '^%d+')) > most then
      stale[#stale + 1] = member
      dropped = dropped + size
    else
      if size > wanted - got and not (whole and string.match(found[place], '^%d+ %d+ %d+ 0')) then
        local number, first, last = string.match(member, '^(%d+):(%d+)%-(%d+)$')
        local cut = first + wanted - got
        split = {member, number, string.format('%d:%d-%d', number, cut, last)}
        member, size = string.format('%d:%d-%d', number, first, cut - 1), wanted - got
      end
      taken[#taken + 1], heads[#heads + 1] = member, found[place]
      got = got + size
      if got >= wanted then break end
    end
  end
  at = at + 256
end
if #stale > 0 then
  call_paged('ZREM', queue, stale)
  for _, stub in ipairs(forget_members(job, stale)) do files[#files + 1] = stub end
  count_up(job, 'queued', -dropped)
  count_up(job, 'dropped', dropped)
end

local answer = {'', acknowledged, dropped, 0, 0, version, #files}
for _, stub in ipairs(files) do answer[#answer + 1] = stub end

local function lease()
  call_paged('ZREM', queue, taken)
  if split[1] then
    redis.call('ZREM', queue, split[1])
    redis.call('ZADD', queue, split[2], split[3])
  end
  redis.call('HSET', key_rollout_batches(job), batch, got .. ' ' .. consumer .. '|' .. table.concat(taken, ' '))
  redis.call('ZADD', key_rollout_leases(job), stamp(now() + tonumber(ARGV[8])), batch)
  if consumer ~= '' then redis.call('HSET', key_rollout_consumers(job), consumer, batch) end
  count_up(job, 'queued', -got)
  count_up(job, 'leased', got)
  count_up(job, 'handed', got)
end

-- How fresh the batch is: by versions, and by seconds since its samples were put.
local function note()
  local told = {samples = got, age = 0, age_max = 0, age_min = math.huge, seconds = 0, seconds_max = 0, old = 0, versions = {}}
  local moment, seen, behind = now(), {}, 0
  for place, head in ipairs(heads) do
    local oldest, put_at = string.match(head, '^(%d+) .* (%S+)$')
    local age, seconds, size = math.max(current - oldest, 0), moment - tonumber(put_at), size_of(taken[place])
    told.age, told.seconds = told.age + age * size, told.seconds + seconds * size
    told.age_max, told.age_min = math.max(told.age_max, age), math.min(told.age_min, age)
    told.seconds_max = math.max(told.seconds_max, seconds)
    if age > 1 then told.old = told.old + size end
    if age > 0 then behind = behind + size end
    if not seen[oldest] then seen[oldest] = true table.insert(told.versions, tonumber(oldest)) end
  end
  count_up(job, 'stale', behind)
  redis.call('LPUSH', key_rollout_recent(job), cjson.encode(told))
  redis.call('LTRIM', key_rollout_recent(job), 0, RECENT_BATCHES - 1)
end

if got >= math.max(least, 1) then
  answer[1] = batch
  lease()
  note()
  local info = redis.call('HMGET', key_rollout(job), 'first_get_at', 'waited_s')
  redis.call('HSET', key_rollout(job), 'first_get_at', info[1] or stamp(now() - tonumber(ARGV[10])),
    'waited_s', stamp(tonumber(info[2] or 0) + tonumber(ARGV[10])))
  local left = tonumber(ARGV[11])
  for place, member in ipairs(taken) do
    local number, body = number_of(member), ''
    if left > redis.call('HSTRLEN', key_rollout_bodies(job), number) then
      body = redis.call('HGET', key_rollout_bodies(job), number)
      left = left - #body
    end
    for _, value in ipairs({member, heads[place], body}) do answer[#answer + 1] = value end
  end
end
answer[5] = feed(job)
answer[4] = tonumber(redis.call('HGET', key_rollout(job), 'queued'))
return answer
