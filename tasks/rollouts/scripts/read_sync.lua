-- Read the state of a rollout's weight sync: the target weights, and the progress of each device.
--
-- ARGV
--   1  rollout id
-- Returns: `ok`; the record; the devices (flat lists, see syncs.lua).
-- @include syncs
return syncs.reply(syncs.open(ARGV[1]), 'ok')
