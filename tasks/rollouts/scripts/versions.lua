-- Which weights the devices of a rollout are to hold, and how far they are. Prepended: what the scripts of jobs share.
-- ARGV  1 rollout  2 action  3.. of the action:
--   open      3 model, or ''  4 tries  5 seconds of one  6 seconds between two  7 number that the model as it is counts as
--   announce  3 number  4 uri  5 sha256  6 owned: '1' when the files are ours to remove  7 tries  8 timeout s  9 delay s  10.. devices
--   look
--   hear      3 device  4 serial
--   confirm   3 device  4 serial  5 latency s
--   fail      3 device  4 serial  5 reason
--   sweep
-- Returns a status word; then for `sweep` the URIs, for all others the hash and the devices, as flat lists.
-- Keeps: a version that nobody could take is taken back, and the last one that somebody took is in force again, for the sample
-- queue too, unless the trainer has named another version there. A device that did not follow the others is in the set of those
-- that left, and gets no work, until it follows, another version is announced, or it has rested: then it is given work and tries
-- again first. Without that, a rollout whose other devices went away would stand still.
local rollout, action = ARGV[1], ARGV[2]
-- Seconds beyond its try in which a device that was heard of may still say what came of it.
local KEPT_S, GRACE_S, REST_S = 30 * 86400, 5, 60
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local hash, devices, left = key_rollout_versions(rollout), key_rollout_devices(rollout), key_rollout_left(rollout)

local function get(field, otherwise) return redis.call('HGET', hash, field) or otherwise end
local function set(...) redis.call('HSET', hash, ...) end
local function stamp(number) return string.format('%.6f', number) end
local function read(device)
  local held = redis.call('HGET', devices, device)
  return held and cjson.decode(held) or {number = 0, serial = 0, latency_s = 0, reason = ''}
end
local function write(device, entry) redis.call('HSET', devices, device, cjson.encode(entry)) end
local function names() return redis.call('HKEYS', devices) end

-- Files of ours that no version names any more wait here to be removed by whoever asks next.
local function outdate(record)
  local old = cjson.decode(record)
  if old.owned ~= '1' then return end
  local list = cjson.decode(get('outdated', '[]'))
  list[#list + 1] = old.uri
  set('outdated', cjson.encode(list))
end

local function leave(device, entry, reason)
  entry.state, entry.reason, entry['until'] = 'left', reason, nil
  write(device, entry)
  redis.call('SADD', left, device)
  redis.call('EXPIRE', left, REST_S)
end

local function end_sync(state, reason)
  set('state', state, 'reason', reason, 'sync_s', stamp(now - tonumber(get('announced_at'))))
  redis.call('HINCRBY', hash, state == 'synced' and 'syncs' or 'rollbacks', 1)
end

local function roll_back(reason)
  local target, safe = get('target'), get('safe')
  outdate(target)
  local number, serial = cjson.decode(safe).number, cjson.decode(safe).serial
  local failed = cjson.decode(target).number
  set('target', safe, 'failed_number', failed)
  if tonumber(redis.call('HGET', key_rollout(rollout), 'version') or '') == failed then new_version(rollout, number) end
  end_sync('rolled_back', reason)
  redis.call('DEL', left)
  for _, device in ipairs(names()) do
    local entry = read(device)
    if entry.serial == serial then entry.state, entry['until'] = 'following', nil write(device, entry)
    else redis.call('HDEL', devices, device) end
  end
end

-- Those that let their time pass have left; once nobody is awaited, the sync is over.
local function settle()
  if get('state', 'synced') ~= 'syncing' then return end
  local awaited, following, reason = 0, 0, 'there is no device worker'
  local serial = cjson.decode(get('target')).serial
  for _, device in ipairs(names()) do
    local entry = read(device)
    if entry.state == 'awaited' and now > entry['until'] then
      leave(device, entry, 'it did not confirm within the time it had')
    end
    if entry.state == 'awaited' then awaited = awaited + 1
    elseif entry.state == 'following' and entry.serial == serial then following = following + 1
    elseif entry.state == 'left' then reason = device .. ': ' .. entry.reason end
  end
  if awaited > 0 or (#names() == 0 and now < tonumber(get('deadline'))) then return end
  if following == 0 then return roll_back(reason) end
  local safe, target = get('safe'), get('target')
  if safe ~= target then outdate(safe) end
  set('safe', target)
  end_sync('synced', '')
end

-- A version that comes before the last one is settled takes its place. If somebody has that one, it is what a roll-back goes to.
local function supersede()
  local target, safe = get('target'), get('safe')
  if target == safe then return end
  local serial = cjson.decode(target).serial
  for _, device in ipairs(names()) do
    if read(device).serial == serial then
      outdate(safe)
      set('safe', target)
      return
    end
  end
  outdate(target)
end

local function begin_with(number)
  local first = cjson.encode({number = number, serial = 0, uri = '', sha256 = '', owned = ''})
  set('target', first, 'safe', first)
end

local function open()
  if redis.call('EXISTS', hash) == 1 then return end
  begin_with(0)
  set('state', 'synced', 'serial', 0, 'reason', '', 'tries', 3, 'timeout_s', 10, 'delay_s', 0.1)
end

local said = 'ok'
open()
settle()
local serial = tonumber(cjson.decode(get('target')).serial)
if action == 'open' then
  if get('serial') == '0' then begin_with(tonumber(ARGV[7])) end
  if ARGV[3] ~= '' then set('model', ARGV[3]) end
  set('tries', ARGV[4], 'timeout_s', ARGV[5], 'delay_s', ARGV[6])
elseif action == 'announce' then
  local held, number = cjson.decode(get('target')), tonumber(ARGV[3])
  if held.number == number and held.uri == ARGV[4] and held.sha256 == ARGV[5] then said = 'again'
  elseif number <= held.number then said = 'stale'
  else
    supersede()
    serial = redis.call('HINCRBY', hash, 'serial', 1)
    set('target', cjson.encode({number = number, serial = serial, uri = ARGV[4], sha256 = ARGV[5], owned = ARGV[6]}),
      'state', 'syncing', 'reason', '', 'announced_at', stamp(now), 'tries', ARGV[7], 'timeout_s', ARGV[8], 'delay_s', ARGV[9])
    local deadline = now + tonumber(ARGV[7]) * (tonumber(ARGV[8]) + tonumber(ARGV[9]))
    set('deadline', stamp(deadline))
    redis.call('DEL', left)
    local wanted = {}
    for at = 10, #ARGV do
      local entry = read(ARGV[at])
      entry.state, entry['until'], entry.reason = 'awaited', deadline, ''
      write(ARGV[at], entry)
      wanted[ARGV[at]] = true
    end
    for _, device in ipairs(names()) do if not wanted[device] then redis.call('HDEL', devices, device) end end
  end
elseif action == 'hear' or action == 'confirm' or action == 'fail' then
  local device, entry = ARGV[3], read(ARGV[3])
  if tonumber(ARGV[4]) ~= serial then said = 'passed'
  elseif action == 'hear' then
    if entry.state == 'awaited' then
      entry['until'] = math.max(entry['until'], now + tonumber(get('timeout_s')) + tonumber(get('delay_s')) + GRACE_S)
      write(device, entry)
    end
  elseif action == 'confirm' then
    local target = cjson.decode(get('target'))
    write(device, {state = 'following', number = target.number, serial = serial, latency_s = tonumber(ARGV[5]), reason = ''})
    redis.call('SREM', left, device)
  else
    leave(device, entry, ARGV[5])
  end
  settle()
end
for _, key in ipairs({hash, devices}) do redis.call('EXPIRE', key, KEPT_S) end
if action == 'sweep' then
  local list = cjson.decode(get('outdated', '[]'))
  redis.call('HDEL', hash, 'outdated')
  return {said, list}
end
return {said, redis.call('HGETALL', hash), redis.call('HGETALL', devices)}
