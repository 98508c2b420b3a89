"""Supervisor of child processes: restarts them with backoff, stops them with SIGTERM and then SIGKILL, orphans none."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.programs import Program, is_alive, wait_until
from workers.processes.supervisor import EXIT_NAME_TAKEN, Command, Supervisor


def python(name: str, code: str, **options: object) -> Command:
    return Command(name, (sys.executable, "-c", code), **options)  # type: ignore[arg-type]


def test_a_dead_child_is_restarted_with_growing_delays(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    supervisor = Supervisor(stop_grace_s=5)
    supervisor.start(python("short", f"open({str(log)!r}, 'a').write('x')"))

    def look() -> bool:
        supervisor.poll()
        return log.exists() and len(log.read_text()) >= 3

    started = time.monotonic()
    wait_until(look, "three starts")
    assert time.monotonic() - started >= 0.5 + 1.0, "no backoff"
    supervisor.shutdown()


def test_a_child_that_reports_that_its_name_is_taken_is_not_restarted() -> None:
    supervisor = Supervisor(stop_grace_s=5)
    supervisor.start(python("taken", f"raise SystemExit({EXIT_NAME_TAKEN})"))
    supervisor.run()
    assert supervisor.failed == {"taken": EXIT_NAME_TAKEN}


def test_a_child_that_ignores_sigterm_is_killed_with_its_own_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # SIG_IGN is inherited
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{below.pid}}\\n")
time.sleep(600)
"""
    supervisor = Supervisor(stop_grace_s=0.3)
    supervisor.start(python("deaf", code))
    wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), "the child writes its pids")
    supervisor.shutdown()
    own, below = map(int, pids.read_text().split())
    assert is_gone(own)
    wait_until(lambda: is_gone(below), "the killed process has been removed by the kernel")


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or not is_alive(psutil.Process(pid))


def test_a_child_that_others_use_is_stopped_after_they_have_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def child(name: str, work_s: float) -> str:
        return f"""
import signal, sys, time
def stop(*_):
    time.sleep({work_s})
    open({str(log)!r}, "a").write("{name} has ended\\n")
    sys.exit()
signal.signal(signal.SIGTERM, stop)
open({str(log)!r}, "a").write("{name}\\n")
time.sleep(600)
"""

    supervisor = Supervisor(stop_grace_s=30)
    supervisor.start(python("called", child("called", 0), stop_last=True))
    supervisor.start(python("caller", child("caller", 0.3)))
    wait_until(lambda: log.exists() and log.read_text().count("\n") == 2, "both run")
    supervisor.shutdown()
    assert log.read_text().splitlines()[2:] == ["caller has ended", "called has ended"]


def test_a_running_child_is_not_started_twice() -> None:
    supervisor = Supervisor(stop_grace_s=5)
    supervisor.start(python("sleeper", "import time; time.sleep(600)"))
    with pytest.raises(ValueError, match="sleeper is running already"):
        supervisor.start(python("sleeper", "pass"))
    supervisor.shutdown()


def test_children_end_when_their_supervisor_is_killed(run: Callable[..., Program]) -> None:
    code = """
import sys
from workers.processes.supervisor import Command, Supervisor
supervisor = Supervisor(stop_grace_s=5)
supervisor.start(Command("sleeper", (sys.executable, "-c", "import time; time.sleep(600)")))
print("started", flush=True)
supervisor.run()
"""
    program = run("python", "-c", code)
    program.wait_for("started")
    (sleeper,) = program.descendants()
    program.stop(signal.SIGKILL)
    wait_until(lambda: not is_alive(sleeper), "the orphan ends")


def test_signals_at_any_moment_do_not_prevent_an_orderly_stop(run: Callable[..., Program]) -> None:
    """The supervisor hung when a signal arrived just before its wait; a stopped and continued child sends two."""
    code = """
import sys
from workers.processes.supervisor import Command, Supervisor
supervisor = Supervisor(stop_grace_s=5)
supervisor.handle_signals()
supervisor.start(Command("sleeper", (sys.executable, "-c", "import time; time.sleep(600)")))
print("started", flush=True)
supervisor.run()
"""
    program = run("python", "-c", code)
    program.wait_for("started")
    for _ in range(20_000):
        program.process.send_signal(signal.SIGCHLD)
    assert program.stop() == 0
