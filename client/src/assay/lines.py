"""Bytes as they arrive, into lines and server-sent events. A piece that is cut off is never handed out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


class LineReader:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that are whole now, without their ends."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield b"".join([*self._pieces, line]).rstrip(b"\r")
            self._pieces.clear()
        if rest:
            self._pieces.append(rest)  # joined once: a row may be megabytes in many pieces

    @property
    def rest(self) -> bytes:
        """What came after the last line end."""
        return b"".join(self._pieces)


@dataclass(frozen=True)
class Event:
    name: str
    id: str = ""
    data: dict[str, Any] = field(default_factory=dict)


class EventReader:
    """The part of text/event-stream that servers use: id, event, data; comments are pings."""

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
    except ValueError:  # a hint that cannot be read: the job itself is asked at the end
        return {}
    return data if isinstance(data, dict) else {}
