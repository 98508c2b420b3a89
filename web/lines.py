"""Lines of a JSONL body, one at a time, from blocks of any size. What a line says is the door's business."""

from collections.abc import Iterable, Iterator

from tasks.errors import InvalidLine
from web.refusal import Refused, too_large


def split(blocks: Iterable[bytes], most_bytes: int) -> Iterator[bytes]:
    """Lines without their ends. Empty ones are allowed at the end only, so that line n is item n - 1."""
    empty = 0
    for number, line in enumerate(_raw(blocks, most_bytes), 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not (line := line.removesuffix(b"\r")).strip():
            empty = empty or number
            continue
        if empty:
            raise InvalidLine(empty, "is empty: write one JSON object on each line.")
        yield line


def _raw(blocks: Iterable[bytes], most_bytes: int) -> Iterator[bytes]:
    begun: list[bytes] = []
    size, number = 0, 1
    for block in blocks:
        *ends, rest = block.split(b"\n")
        for end in ends:
            if size + len(end) > most_bytes:
                raise _too_long(number, most_bytes)
            yield b"".join([*begun, end]) if begun else end
            begun, size = [], 0
            number += 1
        if rest:
            begun.append(rest)
            size += len(rest)
            if size > most_bytes:
                raise _too_long(number, most_bytes)
    if begun:
        yield b"".join(begun)


def _too_long(number: int, most_bytes: int) -> Refused:
    return too_large(
        f"Line {number} is longer than {most_bytes / 1e6:g} MB (ASSAY_MAX_ITEM_MB): make the item smaller.",
        f"line {number}",
    )
