"""Processes that ended by themselves, as the system's log tells. Their supervisor brings them back, and so hides them
from users and from all other books. Does not see a SIGKILL that was not ours to a process of a supervisor: its log has
no pid of the dead."""

import re
from collections import Counter
from collections.abc import Collection

#: As supervisors log it (workers/supervision.py), and gunicorn of its workers.
_SUPERVISED = re.compile(r"(\S+) died with (exit code \d+|signal \w+)")
_WEB = re.compile(r"Worker \(pid:(\d+)\) (?:was sent|exited with) (\w+)(?: (\d+))?")
#: How what was killed dies, and how a Redis that was told to stop.
KILLED = "signal SIGKILL"
TOLD = {("redis-state", "exit code 0"), ("redis-state", "signal SIGTERM")}


def ended_by_themselves(log: str, killed: Collection[int]) -> Counter[tuple[str, str]]:
    """How often which process died how, without being killed by a fault; `killed`: pids that were."""
    found = Counter((name, how) for name, how in _SUPERVISED.findall(log) if how != KILLED and (name, how) not in TOLD)
    for pid, what, code in _WEB.findall(log):
        if int(pid) not in killed:
            found["a web process", f"exit code {code}" if code else f"signal {what}"] += 1
    return found
