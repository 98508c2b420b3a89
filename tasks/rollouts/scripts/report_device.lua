-- Record the progress of a device that loads weights.
--
-- ARGV
--   1  rollout id
--   2  device
--   3  serial of the announcement
--   4  `loading`, `holds` or `failed`
--   5  of `holds`: seconds that loading took; of `failed`: the reason; of `loading`: ''
-- Returns: `ok`, or `passed` when the weights are no longer the target; the record; the devices (flat lists, see
-- syncs.lua).
-- Invariants:
--   * A device that fails is in the set of devices that left, and gets no work, until it holds the weights, new weights
--     are announced, or the set expires.
-- @include syncs
local sync, device, serial, report, detail = syncs.open(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local target, entry = syncs.target(sync), syncs.read_device(sync, device)
local is_current = target.serial == serial
if is_current and report == 'loading' then
  if entry.state == 'awaited' then syncs.extend(sync, device, entry) end
elseif is_current and report == 'holds' then
  syncs.write_device(sync, device,
    {state = 'following', number = target.number, serial = serial, latency_s = tonumber(detail), reason = ''})
  redis.call('SREM', sync.left, device)
elseif is_current then
  syncs.leave(sync, device, entry, detail)
end
syncs.settle(sync)
return syncs.reply(sync, is_current and 'ok' or 'passed')
