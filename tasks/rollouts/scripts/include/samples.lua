-- Samples in the queue of a rollout. A bundle is put as a whole: the samples of a prompt, or loose samples of several
-- prompts. It is queued as members "<number>:<first>-<last>" of the queue, with samples counted from 0: a single
-- member, or several after a batch took only a part of its samples.
--
-- Records, as JSON:
--   about a new bundle  oldest, newest: versions of its tokens; samples: their number; is_loose: whether the bundle may
--                       be divided; partial: number of samples with tokens of several versions; seconds: time that it
--                       took
--   head of a bundle    oldest, newest, samples, is_loose; left: number of samples not yet used or dropped; put_at
-- @include clock
-- @include commands
-- @include rollouts
local samples = {}

-- Number of bundles whose times are kept.
local RECENT_TIMES = 1000

local function encode_head(head, put_at)
  return string.format('{"oldest":%d,"newest":%d,"samples":%d,"is_loose":%s,"left":%d,"put_at":%s}', head.oldest,
    head.newest, head.samples, tostring(head.is_loose), head.left, put_at)
end

-- Return the number of samples in a member.
function samples.size_of(member)
  local first, last = string.match(member, ':(%d+)%-(%d+)$')
  return last - first + 1
end

-- Return a member's bundle, by its number.
function samples.number_of(member) return string.match(member, '^(%d+)') end

-- Divide a member into two: its first `size` samples, and the remaining samples.
function samples.divide(member, size)
  local number, first, last = string.match(member, '^(%d+):(%d+)%-(%d+)$')
  local middle = first + size
  return string.format('%d:%d-%d', number, first, middle - 1), string.format('%d:%d-%d', number, middle, last)
end

-- Put bundles into the queue. `bundles`: list of {about, body}.
function samples.put(rollout_id, bundles)
  if #bundles == 0 then return end
  local put_at, total, heads, bodies, members, times = clock.stamp(clock.now()), 0, {}, {}, {}, {}
  local number = rollouts.count(rollout_id, 'number', #bundles) - #bundles
  local partial = 0
  local span = tonumber(redis.call('HGET', keys.rollout(rollout_id), 'max_partial_span') or 0)
  for place, bundle in ipairs(bundles) do
    local about = cjson.decode(bundle[1])
    local name, at = string.format('%d', number + place), 2 * place
    about.left = about.samples
    heads[at - 1], heads[at] = name, encode_head(about, put_at)
    bodies[at - 1], bodies[at] = name, bundle[2]
    members[at - 1], members[at] = name, string.format('%s:0-%d', name, about.samples - 1)
    times[place] = about.seconds
    total, partial, span = total + about.samples, partial + about.partial, math.max(span, about.newest - about.oldest)
  end
  commands.in_pages('HSET', keys.rollout_heads(rollout_id), heads)
  commands.in_pages('HSET', keys.rollout_bodies(rollout_id), bodies)
  commands.in_pages('ZADD', keys.rollout_queue(rollout_id), members)
  commands.in_pages('LPUSH', keys.rollout_times(rollout_id), times)
  redis.call('LTRIM', keys.rollout_times(rollout_id), 0, RECENT_TIMES - 1)
  rollouts.count(rollout_id, 'queued', total)
  rollouts.count(rollout_id, 'put', total)
  rollouts.count(rollout_id, 'partial', partial)
  redis.call('HSET', keys.rollout(rollout_id), 'max_partial_span', span)
end

-- Remove samples that are used or dropped. Bundles without samples left are deleted. Returns the stubs of deleted
-- bundles with samples in files, for the caller to delete the files.
function samples.forget(rollout_id, members)
  local stubs, gone = {}, {}
  local heads, bodies = keys.rollout_heads(rollout_id), keys.rollout_bodies(rollout_id)
  for _, member in ipairs(members) do
    local number = samples.number_of(member)
    local text = redis.call('HGET', heads, number)
    if text then
      local head = cjson.decode(text)
      head.left = head.left - samples.size_of(member)
      if head.left > 0 then
        redis.call('HSET', heads, number, encode_head(head, string.match(text, '"put_at":([%d.]+)')))
      else
        gone[#gone + 1] = number
      end
    end
  end
  for _, number in ipairs(gone) do
    local body = redis.call('HGET', bodies, number)
    local prefix = constants.STUB_PREFIX
    if body and string.sub(body, 1, #prefix) == prefix then stubs[#stubs + 1] = body end
  end
  commands.in_pages('HDEL', heads, gone)
  commands.in_pages('HDEL', bodies, gone)
  return stubs
end

return samples
