"""Lines of an upload: the same whatever pieces it comes in, and never more than one of them held."""

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import InvalidRequest
from web.lines import InvalidLine, split
from web.refusal import Refused


@given(st.lists(st.binary(min_size=1, max_size=20).filter(lambda line: line.strip() and b"\n" not in line)), st.data())
def test_lines_do_not_depend_on_the_pieces_they_come_in(lines: list[bytes], data: st.DataObject) -> None:
    body = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=10)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    expected = [line.removesuffix(b"\r") for line in lines]
    if expected:
        expected[0] = lines[0].removeprefix(b"\xef\xbb\xbf").removesuffix(b"\r")
    if all(line.strip() for line in expected):
        assert list(split(pieces, 100)) == expected


def test_the_last_line_needs_no_end() -> None:
    assert list(split([b"a\nb"], 10)) == list(split([b"a\r\nb\r\n\n \n"], 10)) == [b"a", b"b"]


def test_an_empty_line_between_others_is_named() -> None:
    with pytest.raises(InvalidLine, match="Line 2") as error:
        list(split([b"a\n\nb\n"], 10))
    assert isinstance(error.value, InvalidRequest)
    assert error.value.line == 2


@pytest.mark.parametrize("blocks", [[b"ok\n", b"x" * 11], [b"ok\n" + b"x" * 11 + b"\n"], [b"ok\n", *[b"x"] * 11]])
def test_a_line_that_is_too_long_is_refused_before_it_ends(blocks: list[bytes]) -> None:
    with pytest.raises(Refused, match="Line 2"):
        list(split(blocks, 10))


def test_many_lines_are_read_in_the_memory_of_a_few() -> None:
    def blocks() -> Iterator[bytes]:
        for _ in range(100):
            yield b'{"prompt": "2+3?", "response": "5"}\n' * 1000

    tracemalloc.start()
    number = sum(1 for _ in split(blocks(), 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == 100_000
    assert peak < 2_000_000
