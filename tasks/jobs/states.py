"""States of jobs and chunks: the single definition, for Python and for the Lua scripts.

A job that is `reopening` (its items are subtracted from the counters, to run again) is active, since it has not ended:
clients wait for it, it counts towards quotas, and it can be cancelled. It is not runnable: no chunk of it is
dispatched, taken or counted, and it cannot be paused. Recovery completes a retry that was interrupted.
"""

from typing import Final, Literal

JobState = Literal["queued", "running", "finishing", "reopening", "done", "failed", "cancelled"]

REOPENING: Final = "reopening"
#: States in which items are dispatched and results are counted.
RUNNABLE: Final[tuple[JobState, ...]] = ("queued", "running", "finishing")
#: States of a job that has not ended.
ACTIVE: Final[tuple[JobState, ...]] = (*RUNNABLE, REOPENING)
#: Final states of a job. Only a retry changes them.
ENDED: Final[tuple[JobState, ...]] = ("done", "failed", "cancelled")
#: States in which a retry may begin, or, in `reopening`, resume after it was interrupted.
RETRIABLE: Final[tuple[JobState, ...]] = (*ENDED, REOPENING)

#: States of a chunk: it is in a queue, or a worker has taken it.
DISPATCHED: Final = "dispatched"
RUNNING: Final = "running"
