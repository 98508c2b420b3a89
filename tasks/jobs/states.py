"""States of jobs and chunks: the single definition, for Python and for the Lua scripts.

A job that is `reopening` (its items are subtracted from the counters, to run again) is active, since it has not ended:
clients wait for it, it counts towards quotas, and it can be cancelled. It is not runnable: no chunk of it is
dispatched, taken or counted, and it cannot be paused. Recovery completes a retry that was interrupted.
"""

from typing import Final, Literal

JobState = Literal["queued", "running", "finishing", "reopening", "done", "failed", "cancelled"]

QUEUED: Final = "queued"
RUNNING: Final = "running"
FINISHING: Final = "finishing"
REOPENING: Final = "reopening"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

#: States in which items are dispatched and results are counted.
RUNNABLE: Final[tuple[JobState, ...]] = (QUEUED, RUNNING, FINISHING)
#: States of a job that has not ended.
ACTIVE: Final[tuple[JobState, ...]] = (*RUNNABLE, REOPENING)
#: Final states of a job. Only a retry changes them.
ENDED: Final[tuple[JobState, ...]] = (DONE, FAILED, CANCELLED)
#: States in which a retry may begin, or, in `reopening`, resume after it was interrupted.
RETRIABLE: Final[tuple[JobState, ...]] = (*ENDED, REOPENING)

#: State of a chunk in a queue. A chunk that a worker has taken is `RUNNING`, like its job.
DISPATCHED: Final = "dispatched"
