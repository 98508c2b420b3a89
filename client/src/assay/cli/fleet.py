"""The commands on queues, devices, workers and policy servers: print the server's lists as tables or as JSON."""

from __future__ import annotations

from typing import Any

from assay.cli import exits
from assay.cli.session import Session


def queues(session: Session) -> int:
    def cells(row: dict[str, Any]) -> tuple[object, ...]:
        state = "paused" if row.get("paused") else row.get("state", "")
        return row.get("queue"), row.get("waiting"), len(row.get("workers") or ()), state

    return _show(session, session.client.queues(), ("queue", "waiting", "workers", "state"), cells)


def devices(session: Session) -> int:
    def cells(row: dict[str, Any]) -> tuple[object, ...]:
        pinned = ",".join(row.get("devices") or ()) or "cpu"
        models = ", ".join(str(model) for model in row.get("models") or ())
        return row.get("queue"), row.get("node"), pinned, row.get("state"), _yes(row.get("busy")), memory(row), models

    columns = ("queue", "node", "devices", "state", "busy", "memory", "models")
    return _show(session, session.client.devices(), columns, cells)


def workers(session: Session) -> int:
    def cells(row: dict[str, Any]) -> tuple[object, ...]:
        queues = ",".join(row.get("queues") or ())
        return (
            row.get("name"),
            row.get("pool"),
            row.get("host"),
            row.get("pid"),
            row.get("state"),
            row.get("active"),
            queues,
        )

    columns = ("worker", "pool", "host", "pid", "state", "active", "queues")
    return _show(session, session.client.workers(), columns, cells)


def policies(session: Session) -> int:
    def cells(row: dict[str, Any]) -> tuple[object, ...]:
        states = ("busy", "connected", "broken", "elsewhere")
        state = next((name for name in states if row.get(name)), "connecting")
        served = " ".join(str(part) for part in (row.get("policy"), row.get("version")) if part)
        latency = row.get("latency_ms")
        counts = (row.get(name) for name in ("calls", "errors", "reconnects"))
        return row.get("url"), state, served, *counts, "" if latency is None else f"{latency:.1f} ms"

    columns = ("server", "state", "policy", "calls", "errors", "reconnects", "latency")
    return _show(session, session.client.pool_status().get("servers") or [], columns, cells)


def memory(row: dict[str, Any]) -> str:
    """Format used and total memory of a device; empty if the server does not report it."""
    used, total = row.get("memory_used_mb"), row.get("memory_total_mb")
    return f"{used:g}/{total:g} MB" if used is not None and total else ""


def _yes(value: object) -> str:
    return "yes" if value else ""


def _show(session: Session, rows: list[dict[str, Any]], columns: tuple[str, ...], cells: Any) -> int:
    if session.screen.as_json:
        session.screen.json(rows)
    else:
        session.screen.table(columns, [cells(row) for row in rows])
    return exits.OK
