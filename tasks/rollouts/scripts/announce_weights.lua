-- Announce new weights to the devices of a rollout. Idempotent.
--
-- ARGV
--   1   rollout id
--   2   version
--   3   URI of the weights
--   4   sha256 of the weights, or ''
--   5   1 when the files belong to the server, which deletes them later, else ''
--   6   maximum tries of a device
--   7   timeout of a try in seconds
--   8   seconds between two tries
--   9.. devices
-- Returns: `ok`; `again` when the same weights were announced before; `stale` when a later version, or this version
-- with other weights, was announced; then the record and the devices (flat lists, see syncs.lua).
-- @include clock
-- @include syncs
local sync, number, uri, sha256, owned = syncs.open(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local tries, timeout_s, delay_s = ARGV[6], ARGV[7], ARGV[8]
local target = syncs.target(sync)
if target.number == number and target.uri == uri and target.sha256 == sha256 then return syncs.reply(sync, 'again') end
if number <= target.number then return syncs.reply(sync, 'stale') end
syncs.supersede(sync)
local serial = redis.call('HINCRBY', sync.versions, 'serial', 1)
local deadline = sync.now + tonumber(tries) * (tonumber(timeout_s) + tonumber(delay_s))
syncs.set(sync,
  'target', cjson.encode({number = number, serial = serial, uri = uri, sha256 = sha256, owned = owned}),
  'state', 'syncing', 'reason', '', 'announced_at', clock.stamp(sync.now), 'deadline', clock.stamp(deadline),
  'tries', tries, 'timeout_s', timeout_s, 'delay_s', delay_s)
redis.call('DEL', sync.left)
local is_awaited = {}
for at = 9, #ARGV do
  local device = ARGV[at]
  is_awaited[device] = true
  syncs.await(sync, device, syncs.read_device(sync, device), deadline)
end
for _, device in ipairs(syncs.device_names(sync)) do
  if not is_awaited[device] then redis.call('HDEL', sync.devices, device) end
end
return syncs.reply(sync, 'ok')
