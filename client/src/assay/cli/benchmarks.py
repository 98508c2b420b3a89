"""The commands on benchmarks: list them, or run a benchmark, show its progress and save its report to a folder."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from assay.cli import exits
from assay.cli.session import Session
from assay.model import ENDED

#: Seconds between two polls of a run.
POLL_S = 1.0
#: Final states of a run: those of jobs, and a run that was not started.
RUN_ENDED = (*ENDED, "skipped")


def listing(session: Session) -> int:
    overview = session.client.benchmarks()
    if session.screen.as_json:
        session.screen.json(overview)
        return exits.OK
    rows = []
    for each in overview["benchmarks"]:
        last = each.get("last_run") or {}
        state, schedule = last.get("state", ""), each.get("schedule") or ""
        rows.append((each["name"], schedule, state, _created_at(last), each["description"]))
    session.screen.table(("benchmark", "schedule", "last run", "time", "description"), rows)
    for regression in overview["regressions"]:
        change = f"{regression['value']:.4g} {regression['unit']}, usually {regression['usual']:.4g}"
        session.screen.line(session.screen.paint(f"regression: {regression['figure']} is {change}", "red"))
    return exits.OK


def run(session: Session) -> int:
    args, client = session.args, session.client
    given = {"repetitions": args.repetitions, "size": args.size, "profile": args.profile, "model": args.model}
    state = client.run_benchmark(args.name, **{name: value for name, value in given.items() if value})
    session.job_id = str(state.get("job_id") or "")
    shown = ""
    while state["state"] not in RUN_ENDED:
        shown = _show_progress(f"{args.name}: {state['done']} of {state['total']} measured", shown)
        time.sleep(POLL_S)
        state = client.benchmark_run(state["id"])
    if shown and sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    if session.screen.as_json:
        session.screen.json(state)
    return _show_report(session, state)


def _show_progress(text: str, shown: str) -> str:
    """Print the progress if it has changed: on a terminal in place of the last line, otherwise as a new line."""
    if text != shown:
        start, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{start}{text}", end=end, file=sys.stderr, flush=True)
    return text


def _show_report(session: Session, run: dict[str, Any]) -> int:
    screen = session.screen
    if run["files"]:
        folder = _save(session, run)
        if not screen.as_json:
            with open(os.path.join(folder, "summary.txt"), encoding="utf-8") as file:
                screen.line(file.read().rstrip())
            screen.line(f"report: {os.path.join(folder, 'performance_report.md')}")
    if run["note"] and not screen.as_json:
        screen.line(run["note"])
    return exits.OK if run["state"] == "done" and not run["note"] else exits.FAILED


def _save(session: Session, run: dict[str, Any]) -> str:
    """Save the report's files to a folder, by default named after the start time of the run."""
    started = time.strftime("%Y%m%d_%H%M%S", time.localtime(run["started_at"] or run["created_at"]))
    folder = session.args.output or f"benchmark_results_{started}"
    os.makedirs(folder, exist_ok=True)
    for name in run["files"]:
        with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
            file.write(session.client.benchmark_file(run["id"], name))
    return folder


def _created_at(run: dict[str, Any]) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(run["created_at"])) if run else ""
