"""Index of documents for retrieval, by the name of an API or by the similarity of embeddings.

The texts stay in the file; memory holds only the byte range and the vector of each document.
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

#: Embeds texts: yields a vector for each text in order, or an error message for a text without a vector.
Embed = Callable[[Iterable[str]], Iterator[Union[Sequence[float], str]]]

_sumprod: Callable[[Sequence[float], Sequence[float]], float] = getattr(
    math, "sumprod", lambda one, other: sum(map(operator.mul, one, other))
)


class Documents:
    def __init__(self, path: str) -> None:
        """Read the file once to index it. Raise ValueError, with the line number, for an invalid line."""
        if path.endswith((".gz", ".zst")):
            raise ValueError(f"{path}: documents need random access to the file: decompress it first")
        self._path = path
        self._offsets, self._lengths = array("q"), array("q")
        self._by_api: dict[str, list[int]] = {}
        self._vectors: list[tuple[int, array[float]]] | None = None
        for line in rows.lines(path):
            if not line.is_blank:
                api = parse_line(path, line, "text", "api").get("api")
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
                content = file.read(self._lengths[index])
                yield rows.parse(content) or {}

    def vectors(self, embed: Embed) -> list[tuple[int, array[float]]]:
        """Return index and vector of each embedded document, computed on first use. Raise AssayError if every
        embedding failed."""
        if self._vectors is None:
            texts = (str(document["text"]) for document in self.read(range(len(self))))
            results = list(enumerate(map(normalize, embed(texts))))
            self._vectors = [(index, vector) for index, vector in results if not isinstance(vector, str)]
            if results and not self._vectors:
                raise AssayError(f"No document could be embedded: {results[0][1]}")
        return self._vectors

    def nearest(self, vector: array[float], most: int, embed: Embed) -> list[tuple[float, int]]:
        """Return cosine similarity and index of the `most` most similar documents, best first."""
        similarities = ((_sumprod(vector, each), index) for index, each in self.vectors(embed))
        return heapq.nlargest(most, similarities, key=operator.itemgetter(0))


def normalize(vector: Sequence[float] | str) -> array[float] | str:
    if isinstance(vector, str):
        return vector
    length = math.sqrt(_sumprod(vector, vector))
    return array("f", (each / length for each in vector)) if length else "the embedding is a zero vector"


def parse_line(path: str, line: rows.Line, needed: str, optional: str) -> dict[str, Any]:
    """Parse and validate a line. Raise ValueError, with the line number, if a field is missing or has a wrong type."""
    row = rows.parse(line.content)
    if row is None:
        raise ValueError(f"{path}, line {line.number}: the line is not a JSON object")
    if not isinstance(row.get(needed), str) or not row[needed].strip():
        raise ValueError(f"{path}, line {line.number}: `{needed}` is missing or not a string")
    if not isinstance(row.get(optional), (str, type(None))):
        raise ValueError(f"{path}, line {line.number}: `{optional}` is not a string")
    return row
