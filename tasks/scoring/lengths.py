"""How long a response is, in tokens: as its item says, or counted with a tokenizer of this installation.

The web process only looks whether a tokenizer is there: the library that counts is installed with workers alone.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import CannotJudge, InvalidRequest
from tasks.scoring.messages import Message, every_turn

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: More tokens than any response has. Bounded, lengths can be computed with as floating-point numbers.
MOST_TOKENS = 10**9

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FILE = "tokenizer.json"


class Tokenizers:
    """Those of a folder: `<name>/tokenizer.json` is the tokenizer `name`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self._folder.glob(f"*/{_FILE}")) if self._folder else []

    def check(self, name: str) -> None:
        """Raises InvalidRequest for one that is not there."""
        if not self._path(name):
            known = ", ".join(self.names())
            there = f"tokenizers are {known}" if known else "the folder of ASSAY_TOKENIZERS_DIR has none"
            raise InvalidRequest(f"spec.tokenizer: there is no tokenizer {name!r}; {there}", field="spec.tokenizer")

    def count(self, name: str, text: str) -> int:
        """The tokens of a text, without those that a tokenizer puts around it. Raises CannotJudge."""
        path = self._path(name)
        if not path:
            raise CannotJudge(
                "tokenizer_unusable",
                f"The tokenizer {name!r} is not on this worker: ASSAY_TOKENIZERS_DIR is not the same everywhere.",
            )
        try:
            stat = path.stat()
            tokenizer = _load(path, stat.st_mtime_ns, stat.st_size)
        except Exception as error:  # the library raises nothing narrower for a file it cannot read
            raise CannotJudge("tokenizer_unusable", f"The tokenizer {name!r} cannot be loaded: {error}") from error
        return len(tokenizer.encode(text, add_special_tokens=False))

    def _path(self, name: str) -> Path | None:
        if not self._folder or not _NAME.fullmatch(name):  # a name, never a path
            return None
        path = self._folder / name / _FILE
        return path if path.is_file() else None


def length_of(
    response: str | Sequence[Message], response_tokens: int | None, tokenizer: str, tokenizers: Tokenizers
) -> int:
    """What the item says, or else the tokens of all that the model wrote. Raises CannotJudge without either."""
    if response_tokens is None and tokenizer:
        return tokenizers.count(tokenizer, every_turn(response))
    return needed(response_tokens)


def needed(length: int | None) -> int:
    if length is None:
        raise CannotJudge(
            "length_missing",
            "The response's length is not known: give the item `response_tokens`, or the spec a `tokenizer`.",
        )
    return length


@lru_cache(maxsize=8)
def _load(path: Path, changed_ns: int, size: int) -> "Tokenizer":  # noqa: ARG001  # a changed file is read anew
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()  # a file may ask for both, and every length would be the same
    tokenizer.no_padding()
    return tokenizer
