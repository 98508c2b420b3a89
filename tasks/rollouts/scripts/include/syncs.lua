-- Weight sync of a rollout: the target weights of its devices, and the progress of each device.
--
-- Records:
--   keys.rollout_versions  hash. target: the weights to load; safe: the last weights that a device held; state:
--                          `syncing`, `synced` or `rolled_back`; serial: of the last announcement; deadline; outdated:
--                          URIs of the server's files that no version names any longer. target and safe are JSON:
--                          number, serial, uri, sha256, owned ('1' when the server deletes the files).
--   keys.rollout_devices   hash. Device -> JSON: state (`following`, `awaited` or `left`), number and serial of the
--                          weights that it confirmed, latency_s, reason, until: deadline of its report.
--   keys.rollout_left      set of the devices that could not load the weights, which get no work. It expires, so that
--                          they retry: otherwise a rollout would stop when its other devices went away.
-- Invariants:
--   * Weights that no device could load are rolled back: the last weights that a device held are the target again, also
--     for the sample queue, unless the trainer has set a different version there.
-- @include clock
-- @include rollouts
local syncs = {}

local KEPT_S = 30 * 86400
-- Seconds after the end of its try during which a device that has reported may still report.
local GRACE_S = 5
-- Seconds for which a device that left gets no work.
local REST_S = 60

function syncs.get(sync, field, otherwise) return redis.call('HGET', sync.versions, field) or otherwise end

function syncs.set(sync, ...) redis.call('HSET', sync.versions, ...) end

function syncs.target(sync) return cjson.decode(syncs.get(sync, 'target')) end

function syncs.device_names(sync) return redis.call('HKEYS', sync.devices) end

function syncs.read_device(sync, device)
  local text = redis.call('HGET', sync.devices, device)
  return text and cjson.decode(text) or {number = 0, serial = 0, latency_s = 0, reason = ''}
end

function syncs.write_device(sync, device, entry) redis.call('HSET', sync.devices, device, cjson.encode(entry)) end

-- Set the model's original weights as the target, with a version number.
function syncs.start_at(sync, number)
  local first = cjson.encode({number = number, serial = 0, uri = '', sha256 = '', owned = ''})
  syncs.set(sync, 'target', first, 'safe', first)
end

-- Queue the files of weights that no version names any longer, for deletion by the next caller of sweep_weights.lua.
local function outdate(sync, text)
  local weights = cjson.decode(text)
  if weights.owned ~= '1' then return end
  local uris = cjson.decode(syncs.get(sync, 'outdated', '[]'))
  uris[#uris + 1] = weights.uri
  syncs.set(sync, 'outdated', cjson.encode(uris))
end

-- Record that a device could not load the weights and has left.
function syncs.leave(sync, device, entry, reason)
  entry.state, entry.reason, entry['until'] = 'left', reason, nil
  syncs.write_device(sync, device, entry)
  redis.call('SADD', sync.left, device)
  redis.call('EXPIRE', sync.left, REST_S)
end

-- Await a device's report until a deadline.
function syncs.await(sync, device, entry, until_)
  entry.state, entry['until'], entry.reason = 'awaited', until_, ''
  syncs.write_device(sync, device, entry)
end

-- Extend the deadline of a device that reported loading, by the duration of a try.
function syncs.extend(sync, device, entry)
  local try_s = tonumber(syncs.get(sync, 'timeout_s')) + tonumber(syncs.get(sync, 'delay_s')) + GRACE_S
  entry['until'] = math.max(entry['until'], sync.now + try_s)
  syncs.write_device(sync, device, entry)
end

local function finish(sync, state, reason)
  local seconds = sync.now - tonumber(syncs.get(sync, 'announced_at'))
  syncs.set(sync, 'state', state, 'reason', reason, 'sync_s', clock.stamp(seconds))
  redis.call('HINCRBY', sync.versions, state == 'synced' and 'syncs' or 'rollbacks', 1)
end

local function roll_back(sync, reason)
  local target, safe = syncs.get(sync, 'target'), syncs.get(sync, 'safe')
  outdate(sync, target)
  local held, failed = cjson.decode(safe), cjson.decode(target).number
  syncs.set(sync, 'target', safe, 'failed_number', failed)
  local version = redis.call('HGET', keys.rollout(sync.rollout_id), 'version')
  if version and tonumber(version) == failed then rollouts.set_version(sync.rollout_id, held.number) end
  finish(sync, 'rolled_back', reason)
  redis.call('DEL', sync.left)
  for _, device in ipairs(syncs.device_names(sync)) do
    local entry = syncs.read_device(sync, device)
    if entry.serial == held.serial then
      entry.state, entry['until'] = 'following', nil
      syncs.write_device(sync, device, entry)
    else
      redis.call('HDEL', sync.devices, device)
    end
  end
end

-- End the sync when no device is awaited: synced if at least one device follows, else rolled back. Devices past their
-- deadline have left.
function syncs.settle(sync)
  if syncs.get(sync, 'state', 'synced') ~= 'syncing' then return end
  local awaited, following, reason = 0, 0, 'there is no device worker'
  local serial, devices = syncs.target(sync).serial, syncs.device_names(sync)
  for _, device in ipairs(devices) do
    local entry = syncs.read_device(sync, device)
    if entry.state == 'awaited' and sync.now > entry['until'] then
      syncs.leave(sync, device, entry, 'it did not confirm before its deadline')
    end
    if entry.state == 'awaited' then
      awaited = awaited + 1
    elseif entry.state == 'following' and entry.serial == serial then
      following = following + 1
    elseif entry.state == 'left' then
      reason = device .. ': ' .. entry.reason
    end
  end
  if awaited > 0 or (#devices == 0 and sync.now < tonumber(syncs.get(sync, 'deadline'))) then return end
  if following == 0 then return roll_back(sync, reason) end
  local safe, target = syncs.get(sync, 'safe'), syncs.get(sync, 'target')
  if safe ~= target then outdate(sync, safe) end
  syncs.set(sync, 'safe', target)
  finish(sync, 'synced', '')
end

-- Prepare the announcement of new weights during a sync. If a device holds the previous target, it becomes the safe
-- version for a rollback.
function syncs.supersede(sync)
  local target, safe = syncs.get(sync, 'target'), syncs.get(sync, 'safe')
  if target == safe then return end
  local serial = cjson.decode(target).serial
  for _, device in ipairs(syncs.device_names(sync)) do
    if syncs.read_device(sync, device).serial == serial then
      outdate(sync, safe)
      syncs.set(sync, 'safe', target)
      return
    end
  end
  outdate(sync, target)
end

-- Return the sync of a rollout, settled by the reports and deadlines so far. Creates its record if it does not exist.
function syncs.open(rollout_id)
  local sync = {rollout_id = rollout_id, now = clock.now(), versions = keys.rollout_versions(rollout_id),
    devices = keys.rollout_devices(rollout_id), left = keys.rollout_left(rollout_id)}
  if redis.call('EXISTS', sync.versions) == 0 then
    syncs.start_at(sync, 0)
    syncs.set(sync, 'state', 'synced', 'serial', 0, 'reason', '', 'tries', 3, 'timeout_s', 10, 'delay_s', 0.1)
  end
  syncs.settle(sync)
  return sync
end

function syncs.renew(sync)
  for _, key in ipairs({sync.versions, sync.devices}) do redis.call('EXPIRE', key, KEPT_S) end
end

-- Renew the TTL of the records, and return the reply of a script: a status word, the record, the devices.
function syncs.reply(sync, status)
  syncs.renew(sync)
  return {status, redis.call('HGETALL', sync.versions), redis.call('HGETALL', sync.devices)}
end

return syncs
