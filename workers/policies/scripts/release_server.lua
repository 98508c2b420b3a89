-- Release the lease on a policy server.
--
-- ARGV
--   1  the server, as in config/keys.py
--   2  name of the worker
-- Returns: nothing.
-- Invariants:
--   * The lease of another worker stays.
local server, worker = keys.policy_owner(ARGV[1]), ARGV[2]
if redis.call('GET', server) == worker then redis.call('DEL', server) end
