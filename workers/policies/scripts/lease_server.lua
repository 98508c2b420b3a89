-- Acquire or renew the lease on a policy server.
--
-- ARGV
--   1  the server, as in config/keys.py
--   2  name of the worker
--   3  lifetime of the lease in ms
-- Returns: 1 when the worker holds the lease, else 0.
-- Invariants:
--   * A server has one owner. A restarted worker keeps the leases of its last process, since two workers of one name
--     never live at the same time.
local server, worker = keys.policy_owner(ARGV[1]), ARGV[2]
local owner = redis.call('GET', server)
if owner and owner ~= worker then return 0 end
redis.call('SET', server, worker, 'PX', ARGV[3])
return 1
