-- Store the model of a new rollout, and the retry policy with which devices load weights. Idempotent.
--
-- ARGV
--   1  rollout id
--   2  model as JSON, or ''
--   3  maximum tries of a device
--   4  timeout of a try in seconds
--   5  seconds between two tries
--   6  version number of the model's original weights
-- Returns: `ok`; the record; the devices (flat lists, see syncs.lua).
-- @include syncs
local sync, model = syncs.open(ARGV[1]), ARGV[2]
if syncs.get(sync, 'serial') == '0' then syncs.start_at(sync, tonumber(ARGV[6])) end
if model ~= '' then syncs.set(sync, 'model', model) end
syncs.set(sync, 'tries', ARGV[3], 'timeout_s', ARGV[4], 'delay_s', ARGV[5])
return syncs.reply(sync, 'ok')
