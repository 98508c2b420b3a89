"""Length of a response in tokens: given by its item, or counted with a tokenizer of this installation.

The web process only checks that a tokenizer exists: the library that counts is installed on workers only.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import CannotJudge, InvalidRequest
from tasks.scoring.messages import Message, assistant_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Maximum length of a response. The bound makes lengths exact as floating-point numbers.
MOST_TOKENS = 10**9

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FILE = "tokenizer.json"


class Tokenizers:
    """The tokenizers of a folder: `<name>/tokenizer.json` is the tokenizer `name`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self._folder.glob(f"*/{_FILE}")) if self._folder else []

    def check(self, name: str) -> None:
        """Raise InvalidRequest when the folder has no tokenizer of this name."""
        if not self._path(name):
            known = ", ".join(self.names())
            remedy = f"use {known}" if known else "put a <name>/tokenizer.json into the folder of ASSAY_TOKENIZERS_DIR"
            raise InvalidRequest(f"spec.tokenizer: unknown tokenizer {name!r}: {remedy}", field="spec.tokenizer")

    def count(self, name: str, text: str) -> int:
        """Count the tokens of a text, without the tokenizer's special tokens. Raises CannotJudge."""
        path = self._path(name)
        if not path:
            raise CannotJudge(
                "tokenizer_unusable",
                f"This worker has no tokenizer {name!r}: give web and CPU workers the same ASSAY_TOKENIZERS_DIR.",
            )
        try:
            stat = path.stat()
            tokenizer = _load(path, stat.st_mtime_ns, stat.st_size)
        except Exception as error:  # the library raises plain Exception for an invalid file
            raise CannotJudge("tokenizer_unusable", f"The tokenizer {name!r} cannot be loaded: {error}") from error
        return len(tokenizer.encode(text, add_special_tokens=False))

    def _path(self, name: str) -> Path | None:
        if not self._folder or not _NAME.fullmatch(name):  # only names are allowed, never paths
            return None
        path = self._folder / name / _FILE
        return path if path.is_file() else None


def length_of(
    response: str | Sequence[Message], response_tokens: int | None, tokenizer: str, tokenizers: Tokenizers
) -> int:
    """Return the item's own length, or else count the tokens of the assistant's text. Raises CannotJudge if neither
    the item has a length nor the spec a tokenizer."""
    if response_tokens is None and tokenizer:
        return tokenizers.count(tokenizer, assistant_text(response))
    return require_length(response_tokens)


def require_length(length: int | None) -> int:
    if length is None:
        raise CannotJudge(
            "length_missing",
            "The response's length is unknown: give the item `response_tokens`, or the spec a `tokenizer`.",
        )
    return length


@lru_cache(maxsize=8)
def _load(path: Path, changed_ns: int, size: int) -> "Tokenizer":  # noqa: ARG001  # a changed file misses the cache
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()  # a file may enable truncation and padding, which would make every length equal
    tokenizer.no_padding()
    return tokenizer
