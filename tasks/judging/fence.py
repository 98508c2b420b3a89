"""A fence around text under judgement, so that it cannot speak as the judge, or as the one who asks.

The code on both ends is made from the texts themselves: the same request is the same prompt (and the same cache key),
and no text can hold the code that fences it.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Characters of a code: too many to be met by chance, few enough for a judge to compare.
CODE_CHARS = 16
#: Fenced texts looked for in one reply.
MOST_FENCED = 100
_OPENING = re.compile(rf"<<<([A-Z ]{{1,40}}) ([0-9a-f]{{{CODE_CHARS}}})\n")


@dataclass(frozen=True, slots=True)
class Fence:
    code: str

    @classmethod
    def around(cls, texts: Iterable[str]) -> "Fence":
        """A fence that none of these texts can break."""
        texts = list(texts)
        everything = json.dumps(texts)
        lowered = [text.lower() for text in texts]
        turn = 0
        while True:
            code = hashlib.sha256(f"{turn}:{everything}".encode()).hexdigest()[:CODE_CHARS]
            if not any(code in text for text in lowered):
                return cls(code)
            turn += 1

    def wrap(self, name: str, text: str) -> str:
        return f"<<<{name} {self.code}\n{text}\n{name} {self.code}>>>"


def without_fenced(reply: str) -> str:
    """A judge's reply with spaces for each text that it repeats fence and all."""
    place = 0
    for _ in range(MOST_FENCED):
        if not (opening := _OPENING.search(reply, place)):
            break
        closing = f"\n{opening[1]} {opening[2]}>>>"
        end = reply.find(closing, opening.end() - 1)
        place = opening.end()
        if end >= 0:
            place = end + len(closing)
            reply = reply[: opening.start()] + " " * (place - opening.start()) + reply[place:]
    return reply
