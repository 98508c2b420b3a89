"""Lines of a JSONL body, one at a time, from blocks of any size. What a line says is the door's business."""

from collections.abc import Iterable, Iterator

from tasks.errors import InvalidLine
from web.refusal import Refused, too_large

_BOM = b"\xef\xbb\xbf"


class Lines:
    """The lines without their ends. Empty ones are skipped, and count all the same: a mistake is told by the number
    that an editor shows."""

    def __init__(self, blocks: Iterable[bytes], most_bytes: int) -> None:
        self._lines = _raw(blocks, most_bytes)
        self.items = 0
        """Lines handed out so far."""
        self._number = 0
        self._last = b""

    def __iter__(self) -> Iterator[bytes]:
        for number, line in enumerate(self._lines, 1):
            if number == 1:
                line = line.removeprefix(_BOM)
            if (line := line.removesuffix(b"\r")).strip():
                self.items += 1
                self._number, self._last = number, line
                yield line

    def numbered(self, error: InvalidLine) -> InvalidLine:
        """What the door, which counts only what it is given, says of the line it was given last."""
        if error.line != self.items:
            return error
        told = str(error).removeprefix(f"Line {error.line}: ")
        try:
            self._last.decode()
        except UnicodeDecodeError as broken:
            told = f"is not UTF-8: byte {broken.start + 1} of it is 0x{self._last[broken.start]:02x}."
        field = "" if error.field == f"line {error.line}" else error.field
        return InvalidLine(self._number, told, field)


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
