-- Read which weights the devices of a rollout are to hold, and how far they are.
--
-- ARGV
--   1  rollout id
-- Returns: `ok`; the record; the devices (flat lists, see syncs.lua).
-- @include syncs
return syncs.reply(syncs.open(ARGV[1]), 'ok')
