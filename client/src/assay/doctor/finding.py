"""One line of a check-up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    level: str
    """`ok`, `warn` (works, but look), `FAIL` (does not work) or `skip` (not checked, and why)."""
    name: str
    detail: str
    fix: str = ""


def ok(name: str, detail: str) -> Finding:
    return Finding("ok", name, detail)


def warn(name: str, detail: str, fix: str) -> Finding:
    return Finding("warn", name, detail, fix)


def fail(name: str, detail: str, fix: str) -> Finding:
    return Finding("FAIL", name, detail, fix)


def skip(name: str, why: str) -> Finding:
    return Finding("skip", name, f"not checked: {why}")
