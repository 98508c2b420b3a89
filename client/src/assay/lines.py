"""Incremental parsers from bytes to lines and to server-sent events. An incomplete line or event is never returned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class LineReader:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the lines that are complete now, without their line ends."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield b"".join([*self._pieces, line]).rstrip(b"\r")
            self._pieces.clear()
        if rest:
            self._pieces.append(rest)  # joined only once per line: a row may be megabytes long, in many pieces

    @property
    def rest(self) -> bytes:
        """Return the bytes after the last line end."""
        return b"".join(self._pieces)


@dataclass(frozen=True)
class Event:
    name: str
    id: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class EventReader:
    """Parser of the subset of text/event-stream that the server uses: id, event and data. Comments are pings."""

    def __init__(self) -> None:
        self._lines = LineReader()
        self._fields: dict[str, str] = {}

    def feed(self, data: bytes) -> Iterator[Event]:
        for line in self._lines.feed(data):
            if line:
                name, _, value = line.decode("utf-8", "replace").partition(":")
                value = value[1:] if value.startswith(" ") else value
                earlier = self._fields.get(name)
                self._fields[name] = f"{earlier}\n{value}" if name == "data" and earlier else value
                continue
            fields, self._fields = self._fields, {}
            if "event" in fields or "data" in fields:
                yield Event(fields.get("event", "message"), fields.get("id", ""), _object(fields.get("data", "")))


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text or "{}")
    except ValueError:  # a malformed event is ignored: the job itself is read at the end
        return {}
    return data if isinstance(data, dict) else {}
