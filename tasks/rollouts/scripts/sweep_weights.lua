-- Take the files of weights that no version names any longer, for the caller to delete. Returns each file only once.
--
-- ARGV
--   1  rollout id
-- Returns: URIs.
-- @include syncs
local sync = syncs.open(ARGV[1])
local uris = cjson.decode(syncs.get(sync, 'outdated', '[]'))
redis.call('HDEL', sync.versions, 'outdated')
syncs.renew(sync)
return uris
