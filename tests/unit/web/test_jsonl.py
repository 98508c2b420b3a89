"""Reader of an upload's lines: independent of how the bytes are split, and holds at most a single line in memory."""

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import InvalidLine
from web.http.http_error import HttpError
from web.http.jsonl import JsonlReader


@given(st.lists(st.binary(min_size=1, max_size=20).filter(lambda line: line.strip() and b"\n" not in line)), st.data())
def test_lines_do_not_depend_on_how_the_bytes_are_split(lines: list[bytes], data: st.DataObject) -> None:
    body = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=10)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    expected = [line.removesuffix(b"\r") for line in lines]
    if expected:
        expected[0] = lines[0].removeprefix(b"\xef\xbb\xbf").removesuffix(b"\r")
    if all(line.strip() for line in expected):
        assert list(JsonlReader(pieces, 100)) == expected


def test_the_last_line_needs_no_end() -> None:
    assert list(JsonlReader([b"a\nb"], 10)) == list(JsonlReader([b"a\r\nb\r\n\n \n"], 10)) == [b"a", b"b"]


def test_empty_lines_are_skipped_and_counted() -> None:
    lines = JsonlReader([b"\xef\xbb\xbf\r\na\n\n \n", b"b\n\nc"], 10)
    told = []
    for item, _ in enumerate(lines, 1):
        error = lines.renumber(InvalidLine(item, "is not JSON.", "query"))
        told.append((error.line, str(error), error.field))
    assert told == [(n, f"Line {n}: is not JSON.", "query") for n in (2, 5, 7)]


def test_a_line_that_is_not_utf_8_is_reported() -> None:
    lines = JsonlReader([b'\n{"query": "caf\xe9"}\n'], 100)
    list(lines)
    error = lines.renumber(InvalidLine(1, "is not JSON (invalid unicode code point)."))
    assert str(error) == "Line 2: is not UTF-8: its byte 15 is 0xe9."
    assert (error.line, error.field) == (2, "line 2")


@pytest.mark.parametrize("blocks", [[b"ok\n", b"x" * 11], [b"ok\n" + b"x" * 11 + b"\n"], [b"ok\n", *[b"x"] * 11]])
def test_a_line_that_is_too_long_is_refused_before_it_ends(blocks: list[bytes]) -> None:
    with pytest.raises(HttpError, match="Line 2"):
        list(JsonlReader(blocks, 10))


def test_memory_does_not_grow_with_the_number_of_lines() -> None:
    def blocks() -> Iterator[bytes]:
        for _ in range(100):
            yield b'{"prompt": "2+3?", "response": "5"}\n' * 1000

    tracemalloc.start()
    number = sum(1 for _ in JsonlReader(blocks(), 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == 100_000
    assert peak < 2_000_000
