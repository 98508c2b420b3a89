"""Result of a check of `assay doctor`: level, subject, detail and fix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    level: str
    """`ok`, `warn` (works, but needs attention), `FAIL` (does not work) or `skip` (not checked, with the reason)."""
    name: str
    detail: str
    fix: str = ""


def ok(name: str, detail: str) -> Finding:
    return Finding("ok", name, detail)


def warn(name: str, detail: str, fix: str) -> Finding:
    return Finding("warn", name, detail, fix)


def fail(name: str, detail: str, fix: str) -> Finding:
    return Finding("FAIL", name, detail, fix)


def skip(name: str, reason: str) -> Finding:
    return Finding("skip", name, f"not checked: {reason}")
