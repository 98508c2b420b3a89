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
#: A fenced text in a judge's reply, where it was repeated word for word.
FENCED = re.compile(rf"<<<([A-Z ]{{1,40}}) ([0-9a-f]{{{CODE_CHARS}}})\n.*?\n\1 \2>>>", re.DOTALL)


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
