"""Every Redis key of Assay: one function each, with its type and lifetime.

All keys of the state Redis start with `assay:`; Celery's own (queue lists, `unacked*`, `_kombu*`) do not. The Lua
scripts of `tasks/jobs` get these names from here too (`lua_functions`), so that a key is spelt once. Scripts build keys
from ids they read, which Redis Cluster does not allow; it is not supported.
"""

# --- the cache Redis --------------------------------------------------------------------------------------------------


def cached(kind: str, request: str) -> str:
    """String, JSON: the answer to a request, in the cache Redis. Lives `cache_ttl_s`, and may be evicted."""
    return f"assay:cache:{kind}:{request}"


def asked(kind: str, stage: str, item: str) -> str:
    """List, JSON, newest first: what determined the last answers stored for an item of this id, to explain a miss. In
    the cache Redis, for as long as answers live."""
    return f"assay:asked:{kind}:{stage}:{item}"


# --- who is there -----------------------------------------------------------------------------------------------------


def workers() -> str:
    """Set of the names of workers that announced themselves; a name leaves with its worker. No expiry: it is bounded by
    the number of workers, and names whose record has lapsed are taken out by the next reader."""
    return "assay:workers"


def worker(name: str) -> str:
    """Hash: what the worker of this name is. Lapses `heartbeat_ttl_s` after the last heartbeat."""
    return f"assay:worker:{name}"


def worker_models(name: str) -> str:
    """String, JSON: the models that a process of this worker holds, and which process. Told again every hour; lives
    two."""
    return f"assay:worker:{name}:models"


def worker_policies(name: str) -> str:
    """String, JSON: the policy servers of a process of this worker, and which process. Told every second; lives ten."""
    return f"assay:worker:{name}:policies"


def policy_owner(server: str) -> str:
    """String: the worker that talks to this policy server. Lapses ten seconds after it last said so."""
    return f"assay:policy:{server}:owner"


def probe(token: str) -> str:
    """List, one JSON entry: what a worker answered to one probe. Lives 60 s."""
    return f"assay:probe:{token}"


# --- one job; all of these go when the job expires --------------------------------------------------------------------


def jobs() -> str:
    """Sorted set: job ids by time of creation. A job leaves it when it expires."""
    return "assay:jobs"


def job(job_id: str) -> str:
    """Hash: the job's request, state and counters."""
    return f"assay:job:{job_id}"


def job_blocks(job_id: str) -> str:
    """Hash: block number -> JSON list of the items' payloads. A block holds `BLOCK_ITEMS` items."""
    return f"assay:job:{job_id}:blocks"


def job_offsets(job_id: str) -> str:
    """String: where each block of a stored job begins in its file, and where the last one ends, in `OFFSET_DIGITS`
    digits each."""
    return f"assay:job:{job_id}:offsets"


def job_passed(job_id: str, stage: str, page: str) -> str:
    """Bitmap: the item's result of this stage is counted. A page holds `PAGE_ITEMS` items."""
    return f"assay:job:{job_id}:passed:{stage}:{page}"


def job_outcomes(job_id: str, part: str) -> str:
    """Hash: item index -> its final outcome as JSON; empty while an item of an earlier epoch is to be run again. One
    for each part of a stored job, so that a part leaves in one step; other jobs have part 0 only."""
    return f"assay:job:{job_id}:outcomes:{part}"


def job_parts(job_id: str) -> str:
    """Hash: part of a stored job -> the file its outcomes were moved to; with `~` before it when some of them are run
    again."""
    return f"assay:job:{job_id}:parts"


def job_settled(job_id: str) -> str:
    """Hash: part of a stored job -> how many of its items have an outcome."""
    return f"assay:job:{job_id}:settled"


def job_carry(job_id: str) -> str:
    """Hash: item index -> what its last stage hands to the next, as JSON. An entry goes with the final outcome."""
    return f"assay:job:{job_id}:carry"


def job_pending(job_id: str, stage: str) -> str:
    """List: items that wait to be put into a chunk of this stage. Entries are ranges, see `common.lua`."""
    return f"assay:job:{job_id}:pending:{stage}"


def job_members(job_id: str) -> str:
    """Hash: group -> ranges of its items. A group is named by the index of its first item."""
    return f"assay:job:{job_id}:members"


def job_groups(job_id: str, page: str) -> str:
    """String: the group of each item, `GROUP_DIGITS` digits each; only where the kind has a grouped stage. A page holds
    `PAGE_ITEMS` items."""
    return f"assay:job:{job_id}:groups:{page}"


def job_awaited(job_id: str) -> str:
    """Hash: group -> how many of its items have not reached the grouped stage yet."""
    return f"assay:job:{job_id}:awaited"


def job_reasons(job_id: str) -> str:
    """Hash: error type -> failed items."""
    return f"assay:job:{job_id}:reasons"


def job_workers(job_id: str) -> str:
    """Hash: worker name -> items it did; `<name>:s` -> seconds it took."""
    return f"assay:job:{job_id}:workers"


def job_deaths(job_id: str) -> str:
    """Hash: item index -> workers it killed while it ran alone. Only suspects have an entry."""
    return f"assay:job:{job_id}:deaths"


def job_attempts(job_id: str) -> str:
    """Hash: item index -> times it was begun, kept only for items begun again."""
    return f"assay:job:{job_id}:attempts"


def job_chunks(job_id: str) -> str:
    """Set: ids of the job's chunks that are dispatched or running."""
    return f"assay:job:{job_id}:chunks"


def job_events(job_id: str) -> str:
    """Stream, capped: what happened to the job, for those who watch."""
    return f"assay:job:{job_id}:events"


# --- work on its way --------------------------------------------------------------------------------------------------


def ready(pool: str, priority: str) -> str:
    """Sorted set: `<job>|<stage>` with pending items, by the device-seconds given to the job so far."""
    return f"assay:ready:{pool}:{priority}"


def chunk(chunk_id: str) -> str:
    """Hash: one chunk, from dispatch until its last item is settled."""
    return f"assay:chunk:{chunk_id}"


def chunk_claims(chunk_id: str) -> str:
    """Set: request hashes this chunk has claimed. Goes with the chunk."""
    return f"assay:chunk:{chunk_id}:claims"


def dispatched(queue: str) -> str:
    """Sorted set: chunks dispatched to a queue and not taken, best first."""
    return f"assay:queue:{queue}:dispatched"


def running(queue: str) -> str:
    """Set: chunks of a queue that a worker has taken."""
    return f"assay:queue:{queue}:running"


def loads() -> str:
    """Hash: `<queue>|<priority>` -> seconds of work in the chunks it holds, as estimated when they were dispatched."""
    return "assay:loads"


def queues() -> str:
    """Set: queues that were ever filled and may hold chunks. Bounded by the number of slots."""
    return "assay:queues"


def queue_mode(queue: str) -> str:
    """String: `paused` or `draining`; absent when the queue takes work."""
    return f"assay:queue:{queue}:mode"


def held(incarnation: str) -> str:
    """Set: chunks that this process has taken."""
    return f"assay:held:{incarnation}"


def holders() -> str:
    """Set: incarnations that hold chunks."""
    return "assay:holders"


def batch(incarnation: str) -> str:
    """Hash: what this process is working on right now and until when. Goes when the batch ends."""
    return f"assay:batch:{incarnation}"


def claim(request: str) -> str:
    """String: `<chunk> <token>` that computes this request now. Released with its lease; a day at most."""
    return f"assay:claim:{request}"


def waiters(request: str) -> str:
    """List: `<job>|<stage>|<index>` that wait for the claim on this request. Lives as long as the claim."""
    return f"assay:waiters:{request}"


def parked() -> str:
    """Sorted set: `<job>|<stage>|<entry>` to be pending again, by the time when."""
    return "assay:parked"


def deadlines() -> str:
    """Sorted set: jobs with a deadline, by its time."""
    return "assay:deadlines"


def expiry() -> str:
    """Sorted set: ended jobs, by the time when they are removed."""
    return "assay:expiry"


def staging() -> str:
    """Sorted set: storage folders of jobs that do not exist yet, by the time of their last page."""
    return "assay:staging"


def sequence() -> str:
    """Integer: the last chunk number given out."""
    return "assay:sequence"


def tick() -> str:
    """Hash: when recovery last ran, and until when lapsed heartbeats are forgiven."""
    return "assay:tick"


def tick_lock() -> str:
    """String: who runs recovery now. Lives a few seconds."""
    return "assay:tick:lock"


def happened() -> str:
    """List: what happened to jobs and is not in the log yet. A second's worth; a thousand entries at most where nobody
    writes them down."""
    return "assay:happened"


def idempotency(key: str) -> str:
    """String: `<body hash> <job id>` of the first request with this key. Outlives its job."""
    return f"assay:idempotency:{key}"


def totals() -> str:
    """Hash: what was counted over all jobs and processes, see `tasks/counters.py`. No expiry: it is bounded by its
    labels."""
    return "assay:totals"


# --- outside APIs -----------------------------------------------------------------------------------------------------


def api_limits(profile: str) -> str:
    """Hash: limits set over HTTP, which go before the profile's own; 0 for none. No expiry: they hold until they are
    reset, and are bounded by the number of profiles."""
    return f"assay:api:{profile}:limits"


def api_pace(profile: str) -> str:
    """Hash: the ceiling of calls in flight and how it moves, what the window holds, and until when all pause. Lives an
    hour after the last call."""
    return f"assay:api:{profile}:pace"


def api_window(profile: str) -> str:
    """Hash: `r<slice>` and `t<slice>` -> requests and tokens that began in a slice of the window. Lives two windows."""
    return f"assay:api:{profile}:window"


def api_holders(profile: str) -> str:
    """Hash: process -> JSON: how many calls it has in flight, what it waits for, and when it said so. An entry counts
    for seconds; the hash lives an hour after the last."""
    return f"assay:api:{profile}:holders"


def api_served(profile: str, rank: str) -> str:
    """Sorted set: jobs of a priority by the calls they were given, to share fairly. Jobs that all others have passed
    leave it; it lives an hour after the last call."""
    return f"assay:api:{profile}:served:{rank}"


def api_circuit(profile: str) -> str:
    """Hash: failures in a row; once there were too many, until when the API is let alone and why. Lives an hour."""
    return f"assay:api:{profile}:circuit"


def api_usage(profile: str, day: str) -> str:
    """Hash: calls, tokens and `cost:<currency>`, in billionths, of a profile on a day (UTC). Lives 100 days."""
    return f"assay:api:{profile}:usage:{day}"


def api_lessons(profile: str, model: str) -> str:
    """Hash: what a model cannot take (see `tasks.providers.retry.Lesson`) -> how the API said so. Lives a day."""
    return f"assay:api:{profile}:lessons:{model}"


def job_usage(job_id: str) -> str:
    """Hash: the same of a job. Goes with the job; 30 days after its last call at most."""
    return f"assay:job:{job_id}:usage"


def token_usage(name: str, day: str) -> str:
    """Hash: the same of a bearer token on a day. Lives 100 days."""
    return f"assay:token:{name}:usage:{day}"


# --- rollouts; all of these go with their job, or 30 days after they were last used -----------------------------------


def rollouts() -> str:
    """Set: rollouts that are looked after on the tick. One leaves it when its job is removed."""
    return "assay:rollouts"


def rollout(rollout_id: str) -> str:
    """Hash: what bounds a rollout, and its counters."""
    return f"assay:rollout:{rollout_id}"


def rollout_queue(rollout_id: str) -> str:
    """Sorted set: samples that wait, as `<bundle>:<first>-<last>`, by the number of their bundle."""
    return f"assay:rollout:{rollout_id}:queue"


def rollout_heads(rollout_id: str) -> str:
    """Hash: bundle -> its versions, how many samples it has and how many of them are left, and when it was put. An
    entry goes when all its samples are acknowledged or dropped."""
    return f"assay:rollout:{rollout_id}:heads"


def rollout_bodies(rollout_id: str) -> str:
    """Hash: bundle -> its samples, as JSON, or a stub of the file that has them. Goes with its head."""
    return f"assay:rollout:{rollout_id}:bodies"


def rollout_batches(rollout_id: str) -> str:
    """Hash: batch that was handed out and not acknowledged -> `<samples> <consumer>|<members> ...`."""
    return f"assay:rollout:{rollout_id}:batches"


def rollout_leases(rollout_id: str) -> str:
    """Sorted set: the same batches, by the time when they go back."""
    return f"assay:rollout:{rollout_id}:leases"


def rollout_consumers(rollout_id: str) -> str:
    """Hash: consumer with a name -> the batch it holds."""
    return f"assay:rollout:{rollout_id}:consumers"


def rollout_acknowledged(rollout_id: str) -> str:
    """Sorted set: the last thousand batches that were acknowledged, by when: to say so to who asks again."""
    return f"assay:rollout:{rollout_id}:acknowledged"


def rollout_puts(rollout_id: str) -> str:
    """Sorted set: tokens of the puts of the last ten minutes, by when: one that is repeated puts nothing twice."""
    return f"assay:rollout:{rollout_id}:puts"


def rollout_recent(rollout_id: str) -> str:
    """List, JSON, newest first: how fresh each of the last batches was."""
    return f"assay:rollout:{rollout_id}:recent"


def rollout_times(rollout_id: str) -> str:
    """List, newest first: seconds that each of the last bundles took."""
    return f"assay:rollout:{rollout_id}:times"


def rollout_versions(rollout: str) -> str:
    """Hash: which weights the devices of a rollout are to hold, and how the last sync went."""
    return f"assay:rollout:{rollout}:versions"


def rollout_devices(rollout: str) -> str:
    """Hash: device worker -> JSON: the weights it confirmed last, and whether it follows, is awaited or has left."""
    return f"assay:rollout:{rollout}:devices"


def rollout_left(rollout: str) -> str:
    """Set: queues of devices that could not follow, which get no work of this rollout. Lives a minute: then they may
    try again."""
    return f"assay:rollout:{rollout}:left"


# --- benchmarks -------------------------------------------------------------------------------------------------------


def benchmarks() -> str:
    """Sorted set: the last thousand benchmark runs, by when they were asked for. No expiry: it is bounded."""
    return "assay:benchmarks"


def benchmarks_skipped() -> str:
    """Sorted set: the last hundred that were due and skipped, likewise. Apart: a busy month costs no history."""
    return "assay:benchmarks:skipped"


def benchmark(run: str) -> str:
    """String, JSON: a benchmark run. Lives 430 days, a month longer than its report; a month if it was skipped."""
    return f"assay:benchmark:{run}"


def benchmark_figures(run: str) -> str:
    """String, JSON: the figures of a benchmark run. Lives 400 days."""
    return f"assay:benchmark:{run}:figures"


def benchmark_figure(figure: str, basis: str) -> str:
    """Sorted set: the last hundred values of a figure on one basis, as JSON, by when their runs were asked for. Lives
    400 days after the last."""
    return f"assay:benchmarks:figure:{figure}:{basis}"


def benchmark_standings() -> str:
    """Hash: each figure and basis -> JSON, what its last undisturbed run brought. Lives 400 days after the last run."""
    return "assay:benchmarks:standings"


def benchmark_jobs(run: str) -> str:
    """Set: jobs that the case which is measured now has begun. Goes with the case; two days at most."""
    return f"assay:benchmark:{run}:jobs"


def benchmarks_lock() -> str:
    """String, a lock: somebody is starting a run. Lives half a minute."""
    return "assay:benchmarks:lock"


# --- who asks ---------------------------------------------------------------------------------------------------------


def token_items(name: str) -> str:
    """Hash: how many items a token may still submit, and since when. Lapses when the minute is full again."""
    return f"assay:token:{name}:items"


def token_jobs(name: str) -> str:
    """Sorted set: active jobs of a token, and submits on their way, by the time when they lapse. A week at most."""
    return f"assay:token:{name}:jobs"
