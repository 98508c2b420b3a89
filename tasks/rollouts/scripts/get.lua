-- Lease a batch of samples to a consumer. First acknowledge the consumer's last batch.
--
-- ARGV
--   1   rollout id
--   2   id of the new batch
--   3   samples wanted
--   4   minimum samples of a batch
--   5   current version, or '' for the stored version
--   6   1 to keep bundles whole; then the batch may have more samples than wanted
--   7   consumer, or ''
--   8   lease in seconds
--   9   batch to acknowledge, or ''
--   10  seconds that the consumer has waited
--   11  maximum bytes of bodies in the reply
-- Returns an empty list for an unknown rollout; else three lists:
--   1  id of the new batch, or ''; samples acknowledged (0: before, -1: the batch had returned to the queue); samples
--      dropped as too stale; queued samples; prompts begun; version
--   2  stubs of files to delete
--   3  member, head and body of each part of the batch; the body is '' where it did not fit
-- Invariants:
--   * A sample is in at most one batch at a time.
--   * No sample of a batch is staler than the rollout allows, by the current version.
--   * A consumer with a name holds at most one batch. Samples that it held and did not acknowledge return to the queue,
--     and are handed out first.
-- @include batches
-- @include clock
-- @include commands
-- @include feeding
-- @include rollouts
-- @include samples
local RECENT_BATCHES, PAGE, SHORT_BYTES = 64, 256, 256
local rollout_id, batch, wanted, least = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local is_whole, consumer, lease_s = ARGV[6] == '1', ARGV[7], tonumber(ARGV[8])
local waited_s, most_bytes = tonumber(ARGV[10]), tonumber(ARGV[11])
local rollout, queue = keys.rollout(rollout_id), keys.rollout_queue(rollout_id)
if redis.call('EXISTS', rollout) == 0 then return {} end
rollouts.touch(rollout_id)
batches.give_back_expired(rollout_id)
local acknowledged, stubs = 0, {}
if ARGV[9] ~= '' then acknowledged, stubs = batches.acknowledge(rollout_id, ARGV[9]) end
if consumer ~= '' then
  local held = redis.call('HGET', keys.rollout_consumers(rollout_id), consumer)
  if held then batches.give_back(rollout_id, held) end
end
local info = redis.call('HMGET', rollout, 'version', 'max_staleness', 'first_get_at', 'waited_s')
local version, max_staleness = tonumber(info[1]), tonumber(info[2] or '')
local current = tonumber(ARGV[5]) or version
if current > version then
  rollouts.set_version(rollout_id, current)
  version = current
end

-- Choose members from the front of the queue: the members of the batch, with their heads, and the stale members to
-- drop. A member with more samples than wanted is divided where allowed.
local taken, heads, texts, stale, got, dropped = {}, {}, {}, {}, 0, 0
local divided, left_over
local at = 0
while got < wanted do
  local page = redis.call('ZRANGE', queue, at, at + PAGE - 1)
  if #page == 0 then break end
  local numbers = {}
  for place, member in ipairs(page) do numbers[place] = samples.number_of(member) end
  local found = redis.call('HMGET', keys.rollout_heads(rollout_id), unpack(numbers))
  for place, member in ipairs(page) do
    local size, head = samples.size_of(member), cjson.decode(found[place])
    if max_staleness and current - head.oldest > max_staleness then
      stale[#stale + 1] = member
      dropped = dropped + size
    else
      if size > wanted - got and (head.is_loose or not is_whole) then
        divided, size = member, wanted - got
        member, left_over = samples.divide(member, size)
      end
      taken[#taken + 1], heads[#heads + 1], texts[#texts + 1] = member, head, found[place]
      got = got + size
      if got >= wanted then break end
    end
  end
  at = at + PAGE
end
if #stale > 0 then
  commands.in_pages('ZREM', queue, stale)
  for _, stub in ipairs(samples.forget(rollout_id, stale)) do stubs[#stubs + 1] = stub end
  rollouts.count(rollout_id, 'queued', -dropped)
  rollouts.count(rollout_id, 'dropped', dropped)
end

-- Record the freshness of the batch: in versions, and in seconds since its samples were put.
local function note_freshness()
  local told = {samples = got, versions = {}, age = 0, age_max = 0, age_min = math.huge, seconds = 0, seconds_max = 0,
    old = 0}
  local now, is_seen, behind = clock.now(), {}, 0
  for place, head in ipairs(heads) do
    local age, size = math.max(current - head.oldest, 0), samples.size_of(taken[place])
    local seconds = now - head.put_at
    told.age, told.seconds = told.age + age * size, told.seconds + seconds * size
    told.age_max, told.age_min = math.max(told.age_max, age), math.min(told.age_min, age)
    told.seconds_max = math.max(told.seconds_max, seconds)
    if age > 1 then told.old = told.old + size end
    if age > 0 then behind = behind + size end
    if not is_seen[head.oldest] then
      is_seen[head.oldest] = true
      table.insert(told.versions, head.oldest)
    end
  end
  rollouts.count(rollout_id, 'stale', behind)
  redis.call('LPUSH', keys.rollout_recent(rollout_id), cjson.encode(told))
  redis.call('LTRIM', keys.rollout_recent(rollout_id), 0, RECENT_BATCHES - 1)
end

-- Return member, head and body of each part; the body is '' when it does not exist, or exceeds the remaining bytes of
-- the reply. Short bodies are always in the reply, and so are stubs of files.
local function read_parts()
  local flat, left, bodies = {}, most_bytes, keys.rollout_bodies(rollout_id)
  for place, member in ipairs(taken) do
    local number, body = samples.number_of(member), ''
    local bytes = redis.call('HSTRLEN', bodies, number)
    if bytes > 0 and (left > bytes or bytes < SHORT_BYTES) then
      body = redis.call('HGET', bodies, number)
      left = left - #body
    end
    for _, value in ipairs({member, texts[place], body}) do flat[#flat + 1] = value end
  end
  return flat
end

local handed, flat = '', {}
if got >= math.max(least, 1) then
  handed = batch
  if divided then
    redis.call('ZADD', queue, samples.number_of(left_over), left_over)
    redis.call('ZREM', queue, divided)
  end
  batches.lease(rollout_id, batch, consumer, taken, got, lease_s)
  note_freshness()
  redis.call('HSET', rollout, 'first_get_at', info[3] or clock.stamp(clock.now() - waited_s),
    'waited_s', clock.stamp(tonumber(info[4] or 0) + waited_s))
  flat = read_parts()
end
local begun = feeding.feed(rollout_id)
local queued = tonumber(redis.call('HGET', rollout, 'queued'))
return {{handed, acknowledged, dropped, queued, begun, version}, stubs, flat}
