"""The commands on benchmarks: what can be run, and running one: its progress, then its report as a folder."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from assay.cli import exits
from assay.cli.session import Session

#: Seconds between two looks at a run.
LOOK_S = 1.0
ENDED = ("done", "failed", "cancelled", "skipped")


def listing(session: Session) -> int:
    told = session.client.benchmarks()
    if session.screen.as_json:
        session.screen.json(told)
        return exits.OK
    rows = []
    for each in told["benchmarks"]:
        last = each.get("last_run") or {}
        rows.append((each["name"], each.get("schedule") or "", last.get("state", ""), _when(last), each["description"]))
    session.screen.table(("benchmark", "schedule", "last run", "when", "what"), rows)
    for worse in told["regressions"]:
        found = f"{worse['value']:.4g} {worse['unit']}, usually {worse['usual']:.4g}"
        session.screen.line(session.screen.paint(f"regression: {worse['figure']} is {found}", "red"))
    return exits.OK


def run(session: Session) -> int:
    args, client = session.args, session.client
    given = {"repetitions": args.repetitions, "size": args.size, "profile": args.profile, "model": args.model}
    found = client.run_benchmark(args.name, **{name: value for name, value in given.items() if value})
    session.job_id = str(found.get("job_id") or "")
    shown = ""
    while found["state"] not in ENDED:
        told = f"{args.name}: {found['done']} of {found['total']} measured"
        shown = _tell(told, shown)
        time.sleep(LOOK_S)
        found = client.benchmark_run(found["id"])
    if shown and sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    if session.screen.as_json:
        session.screen.json(found)
    return _ending(session, found)


def _tell(told: str, shown: str) -> str:
    """On a terminal in one line, else a line whenever something was measured."""
    if told != shown:
        start, end = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
        print(f"{start}{told}", end=end, file=sys.stderr, flush=True)
    return told


def _ending(session: Session, run: dict[str, Any]) -> int:
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
    """The report's files, in a folder named by when the run began."""
    began = time.strftime("%Y%m%d_%H%M%S", time.localtime(run["started_at"] or run["created_at"]))
    folder = session.args.output or f"benchmark_results_{began}"
    os.makedirs(folder, exist_ok=True)
    for name in run["files"]:
        with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
            file.write(session.client.benchmark_file(run["id"], name))
    return folder


def _when(run: dict[str, Any]) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(run["created_at"])) if run else ""
