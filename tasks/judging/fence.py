"""Fence around untrusted text in a judge's prompt: a defence against prompt injection.

The code on both ends is a hash of the texts themselves: the same request gives the same prompt (and the same cache
key), and no text can contain the code of its own fence.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Characters of a code: too many for a collision by chance, few enough for a judge to compare.
CODE_CHARS = 16
#: Maximum fenced texts removed from a reply.
MOST_FENCED = 100
_OPENING = re.compile(rf"<<<([A-Z ]{{1,40}}) ([0-9a-f]{{{CODE_CHARS}}})\n")


@dataclass(frozen=True, slots=True)
class Fence:
    code: str

    @classmethod
    def around(cls, texts: Iterable[str]) -> "Fence":
        """Return a fence with a code that occurs in no text, so that no text can close it."""
        texts = list(texts)
        serialized = json.dumps(texts)
        lowered = [text.lower() for text in texts]
        attempt = 0
        while True:
            code = hashlib.sha256(f"{attempt}:{serialized}".encode()).hexdigest()[:CODE_CHARS]
            if not any(code in text for text in lowered):
                return cls(code)
            attempt += 1

    def wrap(self, name: str, text: str) -> str:
        return f"<<<{name} {self.code}\n{text}\n{name} {self.code}>>>"


def blank_fenced(reply: str) -> str:
    """Replace each text that a judge's reply repeats together with its fence by spaces of the same length."""
    position = 0
    for _ in range(MOST_FENCED):
        if not (opening := _OPENING.search(reply, position)):
            break
        closing = f"\n{opening[1]} {opening[2]}>>>"
        end = reply.find(closing, opening.end() - 1)
        position = opening.end()
        if end >= 0:
            position = end + len(closing)
            reply = reply[: opening.start()] + " " * (position - opening.start()) + reply[position:]
    return reply
