"""Registry of Redis keys: a function per key, with the key's type, content and lifetime.

The keys of the state Redis start with `assay:`; Celery's own keys (queue lists, `unacked*`, `_kombu*`) do not. The Lua
scripts get the names from this module too (`tasks/lua.py`), so that each key is spelt only once. Scripts build keys
from ids that they read, which Redis Cluster does not allow; Redis Cluster is therefore not supported.
"""

# --- the cache Redis --------------------------------------------------------------------------------------------------


def cached(kind: str, request: str) -> str:
    """String, JSON: the answer to a request, in the cache Redis. TTL `cache_ttl_s`; may be evicted earlier."""
    return f"assay:cache:{kind}:{request}"


def asked(kind: str, stage: str, item: str) -> str:
    """List, JSON, newest first: request hashes and cache keys of the last answers stored for an item id, to explain a
    cache miss. In the cache Redis, with the TTL of the answers."""
    return f"assay:asked:{kind}:{stage}:{item}"


# --- registry of workers ----------------------------------------------------------------------------------------------


def workers() -> str:
    """Set of the names of registered workers; a worker removes its name when it stops. No TTL: the set is bounded by
    the number of workers, and the next reader removes names with an expired record."""
    return "assay:workers"


def worker(name: str) -> str:
    """Hash: registry record of the worker with this name. Expires `heartbeat_ttl_s` after the last heartbeat."""
    return f"assay:worker:{name}"


def worker_models(name: str) -> str:
    """String, JSON: the models that a process of this worker holds, and the process. Written again every hour; TTL two
    hours."""
    return f"assay:worker:{name}:models"


def worker_policies(name: str) -> str:
    """String, JSON: the policy servers of a process of this worker, and the process. Written every second; TTL 10 s."""
    return f"assay:worker:{name}:policies"


def policy_owner(server: str) -> str:
    """String, a lease: the worker that owns the connection to this policy server. Expires 10 s after its last
    renewal."""
    return f"assay:policy:{server}:owner"


def probe(token: str) -> str:
    """List with a single JSON entry: a worker's reply to a probe. TTL 60 s."""
    return f"assay:probe:{token}"


# --- jobs; the keys of a job are deleted when it expires --------------------------------------------------------------


def jobs() -> str:
    """Sorted set: job ids by time of creation. A job leaves it when it expires."""
    return "assay:jobs"


def job(job_id: str) -> str:
    """Hash: the job's state, counters and short settings. Redis stores it compactly, in a third of the memory, while
    every value has at most 64 characters."""
    return f"assay:job:{job_id}"


def job_definition(job_id: str) -> str:
    """Hash, JSON: the job's immutable fields that may be long: `spec`, `metadata`, `stages`."""
    return f"assay:job:{job_id}:definition"


def job_blocks(job_id: str) -> str:
    """Hash: block number -> JSON list of the items' payloads. A block holds `BLOCK_ITEMS` items."""
    return f"assay:job:{job_id}:blocks"


def job_offsets(job_id: str) -> str:
    """String: offset of each block of a stored job in its file, and the end of the last block, in `OFFSET_DIGITS`
    digits each."""
    return f"assay:job:{job_id}:offsets"


def job_passed(job_id: str, stage: str, page: str) -> str:
    """Bitmap: whether the item's result of this stage has been counted. A page holds `PAGE_ITEMS` items."""
    return f"assay:job:{job_id}:passed:{stage}:{page}"


def job_outcomes(job_id: str, part: str) -> str:
    """Hash: item index -> its final outcome as JSON; empty while an item of an earlier epoch waits to run again. A hash
    per part of a stored job, so that a part is deleted atomically; other jobs have only part 0."""
    return f"assay:job:{job_id}:outcomes:{part}"


def job_parts(job_id: str) -> str:
    """Hash: part of a stored job -> the file to which its outcomes were moved; the prefix `~` marks a part with items
    that are run again."""
    return f"assay:job:{job_id}:parts"


def job_settled(job_id: str) -> str:
    """Hash: part of a stored job -> number of its items with an outcome."""
    return f"assay:job:{job_id}:settled"


def job_carry(job_id: str) -> str:
    """Hash: item index -> its next stage, and the data that its last stage passes on, as JSON, separated by a line
    break. The final outcome deletes the entry."""
    return f"assay:job:{job_id}:carry"


def job_away(job_id: str) -> str:
    """Hash: `<stage>|<index>` of each item that is neither pending nor in a chunk -> the request hash whose claim it
    waits for; empty for an item that is parked before a retry."""
    return f"assay:job:{job_id}:away"


def job_pending(job_id: str, stage: str) -> str:
    """List: pending items, which wait for a chunk of this stage. Entries are ranges, see `ranges.lua`."""
    return f"assay:job:{job_id}:pending:{stage}"


def job_members(job_id: str) -> str:
    """Hash: group -> ranges of its items. The name of a group is the index of its first item."""
    return f"assay:job:{job_id}:members"


def job_groups(job_id: str, page: str) -> str:
    """String: the group of each item, `GROUP_DIGITS` digits each; only if the kind has a grouped stage. A page holds
    `PAGE_ITEMS` items."""
    return f"assay:job:{job_id}:groups:{page}"


def job_awaited(job_id: str) -> str:
    """Hash: group -> number of its items that have not reached the grouped stage yet."""
    return f"assay:job:{job_id}:awaited"


def job_reasons(job_id: str) -> str:
    """Hash: error type -> failed items."""
    return f"assay:job:{job_id}:reasons"


def job_workers(job_id: str) -> str:
    """Hash: worker name -> number of items that it processed; `<name>:s` -> seconds that it took."""
    return f"assay:job:{job_id}:workers"


def job_deaths(job_id: str) -> str:
    """Hash: item index -> number of workers that died while they ran only this item. Only suspected items have an
    entry."""
    return f"assay:job:{job_id}:deaths"


def job_attempts(job_id: str) -> str:
    """Hash: item index -> number of attempts; only for items with more than the first attempt."""
    return f"assay:job:{job_id}:attempts"


def job_chunks(job_id: str) -> str:
    """Set: ids of the job's chunks that are dispatched or running."""
    return f"assay:job:{job_id}:chunks"


def job_events(job_id: str) -> str:
    """Stream, capped: events of the job, for clients that watch it. Expires `EVENTS_TTL_S` after the job's end, because
    even a short stream takes 4 KB; a client that reads later gets a snapshot."""
    return f"assay:job:{job_id}:events"


# --- dispatch, leases and recovery ------------------------------------------------------------------------------------


def ready(pool: str, priority: str) -> str:
    """Sorted set: `<job>|<stage>` with pending items, by the device-seconds given to the job so far."""
    return f"assay:ready:{pool}:{priority}"


def chunk(chunk_id: str) -> str:
    """Hash: record of a chunk, from dispatch until its last item is settled."""
    return f"assay:chunk:{chunk_id}"


def chunk_claims(chunk_id: str) -> str:
    """Set: request hashes that this chunk has claimed. Deleted with the chunk."""
    return f"assay:chunk:{chunk_id}:claims"


def dispatched(queue: str) -> str:
    """Sorted set: chunks dispatched to a queue and not yet taken, in the order in which workers take them."""
    return f"assay:queue:{queue}:dispatched"


def running(queue: str) -> str:
    """Set: chunks of a queue that a worker has taken."""
    return f"assay:queue:{queue}:running"


def loads() -> str:
    """Hash: `<queue>|<priority>` -> seconds of work in the chunks of the queue, as estimated at dispatch."""
    return "assay:loads"


def queues() -> str:
    """Set: queues that have been filled at least once, and may hold chunks. Bounded by the number of slots."""
    return "assay:queues"


def queue_mode(queue: str) -> str:
    """String: `paused` or `draining`; absent when the queue takes work."""
    return f"assay:queue:{queue}:mode"


def held(incarnation: str) -> str:
    """Set: chunks that this process (incarnation of a worker) has taken."""
    return f"assay:held:{incarnation}"


def holders() -> str:
    """Set: incarnations that hold chunks."""
    return "assay:holders"


def batch(incarnation: str) -> str:
    """Hash: the batch that this process is running, with its deadline. Deleted when the batch ends."""
    return f"assay:batch:{incarnation}"


def claim(request: str) -> str:
    """String: id of the chunk that computes this request. Released with the chunk's lease; TTL a day (`CLAIM_S`)."""
    return f"assay:claim:{request}"


def waiters(request: str) -> str:
    """Set: `<job>|<stage>|<index>` of the items that wait for the claim on this request. TTL as of the claim."""
    return f"assay:waiters:{request}"


def parked() -> str:
    """Sorted set: `<job>|<stage>|<entry>` that wait before a retry, by the time at which they become pending again."""
    return "assay:parked"


def deadlines() -> str:
    """Sorted set: jobs with a deadline, by their deadline."""
    return "assay:deadlines"


def expiry() -> str:
    """Sorted set: ended jobs, by the time at which they are removed."""
    return "assay:expiry"


def active() -> str:
    """Sorted set: jobs that have not ended, by the time of their next audit."""
    return "assay:active"


def staging() -> str:
    """Sorted set: storage folders of jobs that are not created yet, by the time of their last written page."""
    return "assay:staging"


def storage_faults() -> str:
    """Hash: `<access>|<host>` -> JSON, the reason why this host cannot read or write the storage, and the time. Deleted
    at the next success; TTL 30 s after the last failure (`FAULT_S`)."""
    return "assay:storage:faults"


def storage_waiting() -> str:
    """Sorted set: `<job>|<stage>` whose items or parts wait for the storage, by the time at which they are tried again.
    TTL a minute after the last addition."""
    return "assay:storage:waiting"


def sequence() -> str:
    """Integer: the last chunk number that was assigned."""
    return "assay:sequence"


def tick() -> str:
    """Hash: time of the last maintenance tick, and the end of the grace period in which expired heartbeats are
    ignored."""
    return "assay:tick"


def exemption() -> str:
    """Never exists: scripts that may exceed `maxmemory` delete it first, see `tasks/lua.py`."""
    return "assay:exemption"


def fence() -> str:
    """String: written before each wait for replicas. A replica that has it has every earlier write."""
    return "assay:fence"


def clock() -> str:
    """Hash: the server's time at the last tick, and the sum of the steps by which its clock was set back, see
    `clock.lua`."""
    return "assay:clock"


def happened() -> str:
    """List: events of jobs that are not in the log yet. Emptied about every second; capped at a thousand entries
    (`EVENTS_KEPT`) if no process writes the log."""
    return "assay:happened"


def idempotency(key: str) -> str:
    """String: JSON of the first request with this idempotency key: body (its hash), job_id. Outlives its job."""
    return f"assay:idempotency:{key}"


def totals() -> str:
    """Hash: counters summed over jobs and processes, see `tasks/counters.py`. No TTL: the hash is bounded by its
    labels."""
    return "assay:totals"


# --- outside APIs -----------------------------------------------------------------------------------------------------


def api_limits(profile: str) -> str:
    """Hash: limits set over HTTP, which override the profile's own; 0: no limit. No TTL: they apply until they are
    reset, and are bounded by the number of profiles."""
    return f"assay:api:{profile}:limits"


def api_pace(profile: str) -> str:
    """Hash: the ceiling of calls in flight with the state of its adaptation, the counts of the rate window, and the end
    of a pause of calls. TTL an hour after the last call."""
    return f"assay:api:{profile}:pace"


def api_window(profile: str) -> str:
    """Hash: `r<slice>` and `t<slice>` -> requests and tokens that began in a slice of the window. TTL two windows."""
    return f"assay:api:{profile}:window"


def api_holders(profile: str) -> str:
    """Hash: process -> JSON: number of its calls in flight, its waiting calls, and the time of the report. An entry is
    valid for seconds; TTL of the hash an hour after the last entry."""
    return f"assay:api:{profile}:holders"


def api_served(profile: str, rank: str) -> str:
    """Sorted set: jobs of a priority by the calls granted to them, for fair sharing. Jobs with fewer calls than the
    least served waiting job are removed; TTL an hour after the last call."""
    return f"assay:api:{profile}:served:{rank}"


def api_circuit(profile: str) -> str:
    """Hash, the circuit breaker: consecutive failures; for an open circuit, the end of the open time and its cause. TTL
    an hour."""
    return f"assay:api:{profile}:circuit"


def api_usage(profile: str, day: str) -> str:
    """Hash: calls, tokens and `cost:<currency>`, in billionths, of a profile on a day (UTC). TTL 100 days."""
    return f"assay:api:{profile}:usage:{day}"


def api_lessons(profile: str, model: str) -> str:
    """Hash: request feature that a model rejects (see `tasks.providers.retry.Lesson`) -> the API's error message. TTL a
    day."""
    return f"assay:api:{profile}:lessons:{model}"


def job_usage(job_id: str) -> str:
    """Hash: calls, tokens and costs of a job. Deleted with the job; TTL 30 days after its last call."""
    return f"assay:job:{job_id}:usage"


def token_usage(name: str, day: str) -> str:
    """Hash: calls, tokens and costs of a bearer token on a day. TTL 100 days."""
    return f"assay:token:{name}:usage:{day}"


# --- rollouts; the keys of a rollout are deleted with its job, or 30 days after their last use ------------------------


def rollouts() -> str:
    """Set: rollouts that the maintenance tick processes. A rollout is removed together with its job."""
    return "assay:rollouts"


def rollout(rollout_id: str) -> str:
    """Hash: limits and counters of a rollout."""
    return f"assay:rollout:{rollout_id}"


def rollout_queue(rollout_id: str) -> str:
    """Sorted set: queued samples, as `<bundle>:<first>-<last>`, by the number of their bundle."""
    return f"assay:rollout:{rollout_id}:queue"


def rollout_heads(rollout_id: str) -> str:
    """Hash: bundle -> its versions, its number of samples in total and left, and the time of its put. An entry is
    deleted when its last sample is acknowledged or dropped."""
    return f"assay:rollout:{rollout_id}:heads"


def rollout_bodies(rollout_id: str) -> str:
    """Hash: bundle -> its samples as JSON, or a stub of the file that contains them. Deleted with its head."""
    return f"assay:rollout:{rollout_id}:bodies"


def rollout_batches(rollout_id: str) -> str:
    """Hash: leased batch -> JSON: number of samples, consumer, members of the queue."""
    return f"assay:rollout:{rollout_id}:batches"


def rollout_leases(rollout_id: str) -> str:
    """Sorted set: leased batches, by the time at which their lease expires."""
    return f"assay:rollout:{rollout_id}:leases"


def rollout_consumers(rollout_id: str) -> str:
    """Hash: consumer with a name -> the batch that it holds."""
    return f"assay:rollout:{rollout_id}:consumers"


def rollout_acknowledged(rollout_id: str) -> str:
    """Sorted set: the last thousand acknowledged batches, by time, so that a repeated acknowledgement is recognised."""
    return f"assay:rollout:{rollout_id}:acknowledged"


def rollout_puts(rollout_id: str) -> str:
    """Sorted set: ids of the puts of the last ten minutes, by time, so that a repeated put is idempotent."""
    return f"assay:rollout:{rollout_id}:puts"


def rollout_recent(rollout_id: str) -> str:
    """List, JSON, newest first: freshness of the last batches."""
    return f"assay:rollout:{rollout_id}:recent"


def rollout_times(rollout_id: str) -> str:
    """List, newest first: seconds that the last bundles took."""
    return f"assay:rollout:{rollout_id}:times"


def rollout_versions(rollout: str) -> str:
    """Hash: target weights of a rollout's devices, and the result of the last sync."""
    return f"assay:rollout:{rollout}:versions"


def rollout_devices(rollout: str) -> str:
    """Hash: device worker -> JSON: the weights that it confirmed last, and its state: following, awaited or left."""
    return f"assay:rollout:{rollout}:devices"


def rollout_left(rollout: str) -> str:
    """Set: queues of devices that could not load the weights, which get no work of this rollout. TTL a minute, after
    which they retry."""
    return f"assay:rollout:{rollout}:left"


# --- benchmarks -------------------------------------------------------------------------------------------------------


def benchmarks() -> str:
    """Sorted set: the last thousand benchmark runs, by the time of their request. No TTL: the set is bounded."""
    return "assay:benchmarks"


def benchmarks_skipped() -> str:
    """Sorted set: the last hundred skipped runs, by the time of their request. Separate, so that a busy month does not
    displace the history of runs."""
    return "assay:benchmarks:skipped"


def benchmark(run: str) -> str:
    """String, JSON: a benchmark run. TTL 430 days, a month longer than its report; a month if it was skipped."""
    return f"assay:benchmark:{run}"


def benchmark_figures(run: str) -> str:
    """String, JSON: the figures of a benchmark run. TTL 400 days."""
    return f"assay:benchmark:{run}:figures"


def benchmark_figure(figure: str, basis: str) -> str:
    """Sorted set: the last hundred values of a figure on the same basis, as JSON, by the time of their run's request.
    TTL 400 days after the last value."""
    return f"assay:benchmarks:figure:{figure}:{basis}"


def benchmark_standings() -> str:
    """Hash: figure and basis -> JSON, the result of its last undisturbed run. TTL 400 days after the last run."""
    return "assay:benchmarks:standings"


def benchmark_jobs(run: str) -> str:
    """Set: jobs that the currently measured case has started. Deleted with the case; TTL two days."""
    return f"assay:benchmark:{run}:jobs"


def benchmarks_lock() -> str:
    """String, a lock, held while a process starts a run. TTL half a minute."""
    return "assay:benchmarks:lock"


# --- bearer tokens ----------------------------------------------------------------------------------------------------


def token_items(name: str) -> str:
    """Hash, a token bucket: number of items that a bearer token may still submit, and the time of that count. Expires
    when the bucket is full again."""
    return f"assay:token:{name}:items"


def token_jobs(name: str) -> str:
    """Sorted set: active jobs of a bearer token, and submits in progress, by the time at which they expire. At most a
    week."""
    return f"assay:token:{name}:jobs"
