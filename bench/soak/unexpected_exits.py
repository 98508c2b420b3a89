"""Detects processes that ended unexpectedly, from the system's log.

Supervisors restart such processes, which hides their exits from users and from the other checks. Not detected: a
foreign SIGKILL of a supervised process, because the log does not have its process id.
"""

import re
from collections import Counter
from collections.abc import Collection

#: Log lines of supervisors (workers/processes/supervisor.py), and of gunicorn about its workers.
_SUPERVISED = re.compile(r"(\S+) died with (exit code \d+|signal \w+)")
_WEB = re.compile(r"Worker \(pid:(\d+)\) (?:was sent|exited with) (\w+)(?: (\d+))?")
#: Exit of a killed process, and exits of a Redis that received SIGTERM.
KILLED = "signal SIGKILL"
TERMINATED = {("redis-state", "exit code 0"), ("redis-state", "signal SIGTERM")}


def unexpected_exits(log: str, killed: Collection[int]) -> Counter[tuple[str, str]]:
    """Count the exits that no fault caused, by process and cause. `killed`: process ids that faults killed."""
    found = Counter(
        (name, how) for name, how in _SUPERVISED.findall(log) if how != KILLED and (name, how) not in TERMINATED
    )
    for pid, cause, code in _WEB.findall(log):
        if int(pid) not in killed:
            found["a web process", f"exit code {code}" if code else f"signal {cause}"] += 1
    return found
