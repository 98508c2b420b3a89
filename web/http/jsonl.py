"""Reader of JSONL bodies: yields lines from blocks of any size. The submitter parses the lines."""

from collections.abc import Iterable, Iterator

from tasks.errors import InvalidLine
from web.http.http_error import HttpError, too_large

_BOM = b"\xef\xbb\xbf"


class JsonlReader:
    """Iterator over the lines, without their line ends. Empty lines are skipped but counted, so that an error names the
    line number that an editor shows."""

    def __init__(self, blocks: Iterable[bytes], max_bytes: int) -> None:
        self._lines = _split(blocks, max_bytes)
        self.items = 0
        """Number of lines yielded so far."""
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

    def renumber(self, error: InvalidLine) -> InvalidLine:
        """Correct the line number of an error that the submitter raised: it counts only the lines that it was given."""
        if error.line != self.items:
            return error
        message = str(error).removeprefix(f"Line {error.line}: ")
        try:
            self._last.decode()
        except UnicodeDecodeError as broken:
            message = f"is not UTF-8: its byte {broken.start + 1} is 0x{self._last[broken.start]:02x}."
        field = "" if error.field == f"line {error.line}" else error.field
        return InvalidLine(self._number, message, field)


def _split(blocks: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    begun: list[bytes] = []
    size, number = 0, 1
    for block in blocks:
        *ends, rest = block.split(b"\n")
        for end in ends:
            if size + len(end) > max_bytes:
                raise _too_long(number, max_bytes)
            yield b"".join([*begun, end]) if begun else end
            begun, size = [], 0
            number += 1
        if rest:
            begun.append(rest)
            size += len(rest)
            if size > max_bytes:
                raise _too_long(number, max_bytes)
    if begun:
        yield b"".join(begun)


def _too_long(number: int, max_bytes: int) -> HttpError:
    return too_large(
        f"Line {number} is longer than {max_bytes / 1e6:g} MB (ASSAY_MAX_ITEM_MB): make the item smaller.",
        f"line {number}",
    )
