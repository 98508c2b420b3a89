"""Documents that questions are answered from: found by the name of an API, or by the similarity of their embeddings.

Their texts stay in the file; of each, its place and its vector are held.
"""

from __future__ import annotations

import heapq
import math
import operator
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable, Union

from assay.errors import AssayError
from assay.inference import rows

#: Vectors in the order of the texts; a sentence for one that has none.
Embed = Callable[[Iterable[str]], Iterator[Union[Sequence[float], str]]]

_sumprod: Callable[[Sequence[float], Sequence[float]], float] = getattr(
    math, "sumprod", lambda one, other: sum(map(operator.mul, one, other))
)


class Documents:
    def __init__(self, path: str) -> None:
        """Raises ValueError with the line that is wrong."""
        if path.endswith((".gz", ".zst")):
            raise ValueError(f"{path}: documents are read here and there: unpack the file first")
        self._path = path
        self._offsets, self._lengths = array("q"), array("q")
        self._by_api: dict[str, list[int]] = {}
        self._vectors: list[tuple[int, array[float]]] | None = None
        for line in rows.lines(path):
            if not line.is_blank:
                api = checked(path, line, "text", "api").get("api")
                if api is not None:
                    self._by_api.setdefault(api, []).append(len(self._offsets))
                self._offsets.append(line.offset)
                self._lengths.append(len(line.content))

    def __len__(self) -> int:
        return len(self._offsets)

    def of_api(self, api: str, most: int) -> list[int]:
        return self._by_api.get(api, [])[:most]

    def read(self, indices: Iterable[int]) -> Iterator[dict[str, Any]]:
        with open(self._path, "rb") as file:
            for index in indices:
                file.seek(self._offsets[index])
                yield rows.read(file.read(self._lengths[index])) or {}

    def vectors(self, embed: Embed) -> list[tuple[int, array[float]]]:
        """Of all documents that have one, made on first use. Raises AssayError when none has."""
        if self._vectors is None:
            texts = (str(document["text"]) for document in self.read(range(len(self))))
            made = list(enumerate(map(normal, embed(texts))))
            self._vectors = [(index, vector) for index, vector in made if not isinstance(vector, str)]
            if made and not self._vectors:
                raise AssayError(f"No document could be embedded: {made[0][1]}")
        return self._vectors

    def nearest(self, vector: array[float], most: int, embed: Embed) -> list[tuple[float, int]]:
        """Similarity and index of the most similar ones, best first."""
        measured = ((_sumprod(vector, each), index) for index, each in self.vectors(embed))
        return heapq.nlargest(most, measured, key=operator.itemgetter(0))


def normal(vector: Sequence[float] | str) -> array[float] | str:
    if isinstance(vector, str):
        return vector
    length = math.sqrt(_sumprod(vector, vector))
    return array("f", (each / length for each in vector)) if length else "its embedding is zero"


def checked(path: str, line: rows.Line, needed: str, optional: str) -> dict[str, Any]:
    """The row of a line. Raises ValueError that names it if a field is not what it should be."""
    row = rows.read(line.content)
    if row is None:
        raise ValueError(f"{path}, line {line.number}: is not a JSON object")
    if not isinstance(row.get(needed), str) or not row[needed].strip():
        raise ValueError(f"{path}, line {line.number}: `{needed}` is missing, or is no text")
    if not isinstance(row.get(optional), (str, type(None))):
        raise ValueError(f"{path}, line {line.number}: `{optional}` is no text")
    return row
