"""`assay doctor`: print a line for each check of a deployment, with a fix for each problem; or repair a job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from assay.cli import exits
from assay.cli.session import Session
from assay.client import Assay
from assay.doctor import host, server
from assay.doctor.finding import Finding
from assay.retry import Retry


def doctor(session: Session) -> int:
    if session.args.repair:
        return _repair(session, session.args.repair)
    findings: list[Finding] = []
    for finding in _run_checks(session):
        findings.append(finding)
        if not session.screen.as_json:
            _show(session, finding)
    failed = any(finding.level == "FAIL" for finding in findings)
    if session.screen.as_json:
        session.screen.json({"ok": not failed, "checks": [asdict(finding) for finding in findings]})
    else:
        counts = {level: sum(each.level == level for each in findings) for level in ("ok", "warn", "FAIL", "skip")}
        session.screen.line(", ".join(f"{count} {level}" for level, count in counts.items() if count))
    return exits.FAILED if failed else exits.OK


def _repair(session: Session, job_id: str) -> int:
    with Assay(session.args.url) as client:
        job = client.job(job_id)
        repaired = job.repair()
        state = job.refresh().state
    if session.screen.as_json:
        session.screen.json({"job": job_id, "repaired": repaired, "state": state})
    elif repaired:
        session.screen.line(f"job {job_id} ({state}): {repaired} items that nothing would have run are pending again")
    else:
        session.screen.line(f"job {job_id} ({state}): nothing to repair")
    return exits.OK


def _run_checks(session: Session) -> Iterator[Finding]:
    # Without retries: the checks report the state of this moment.
    with Assay(session.args.url, retry=Retry(0)) as client:
        yield from server.check(client)
    yield from host.check(Path(session.args.checkout), os.environ)


def _show(session: Session, finding: Finding) -> None:
    screen = session.screen
    screen.line(f"{screen.paint(f'{finding.level:<4}')}  {finding.name:<14}  {finding.detail}")
    if finding.fix:
        screen.line(f"{'':<4}  {'':<14}  fix: {finding.fix}")
