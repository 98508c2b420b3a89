"""Codec of messages for policy servers: compatible with openpi's own codec in both directions."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from openpi_client import msgpack_numpy
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from workers.policies.codec import CodecError, decode, encode
from workers.policies.websocket_frames import binary_frame

DTYPES = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="?"),
    arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    arrays.byte_string_dtypes(min_len=1, max_len=8),
    arrays.unicode_string_dtypes(min_len=1, max_len=8),
)
ARRAYS = DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))
SCALARS = st.sampled_from([np.float32(1.5), np.int8(-3), np.uint64(2**63), np.bool_(True), np.float16(0.1)])
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(), st.binary())
VALUES = st.recursive(
    st.one_of(PLAIN, ARRAYS, SCALARS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray | np.generic):
        return (
            type(one) is type(other)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@given(value=VALUES)
@settings(max_examples=60, deadline=None)
def test_each_codec_decodes_the_output_of_both(value: Any) -> None:
    ours, theirs = encode(value), msgpack_numpy.packb(value)
    assert ours == theirs
    assert same(decode(theirs), msgpack_numpy.unpackb(ours))


@given(array=ARRAYS)
@settings(max_examples=40, deadline=None)
@example(array=np.zeros((0, 3), np.float32))
@example(array=np.array(7))
@example(array=np.asfortranarray(np.arange(6).reshape(2, 3)))
def test_an_array_survives_encoding(array: NDArray[Any]) -> None:
    assert same(decode(encode({"x": array}))["x"], np.ascontiguousarray(array).reshape(array.shape))


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.zeros(2, dtype=[("a", "i4")]),
        np.array([1j]),
        np.complex64(1),
        {"x": object()},
        {"x": 2**70},
        np.datetime64("2026-01-01"),
    ],
)
def test_values_that_the_protocol_cannot_encode_are_refused(value: object) -> None:
    with pytest.raises(CodecError):
        encode({"deep": [value]})


@pytest.mark.parametrize("dtype", ["|O", "O", "|V8", "<c8", "no type"])
def test_a_message_with_a_dangerous_type_is_refused(dtype: str) -> None:
    message = {b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": dtype, b"shape": [1]}
    with pytest.raises(CodecError):
        decode(msgpack_numpy.packb({"x": message}))


@pytest.mark.parametrize("shape", [[3], [-1], [2**62, 2], [1, 1], ["a"], [1.5], None])
def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused(shape: Any) -> None:
    message = {b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": "<f4", b"shape": shape}
    with pytest.raises(CodecError):
        decode(msgpack_numpy.packb(message))


@given(garbage=st.binary(max_size=64))
@settings(max_examples=80, deadline=None)
@example(garbage=b"\xc1")
@example(garbage=b"\x91" * 5000)
@example(garbage=b"\x81\xc4\x0b__ndarray__\xc3")
def test_random_bytes_raise_only_a_codec_error(garbage: bytes) -> None:
    with suppress(CodecError):
        decode(garbage)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 125, 126, 127, 65_535, 65_536, 301_057])
def test_a_websocket_server_can_read_a_frame(length: int) -> None:
    payload = np.random.default_rng(length).bytes(length)
    reader = StreamReader()
    reader.feed_data(binary_frame(payload))
    reader.feed_eof()
    parser = Frame.parse(reader.read_exact, mask=True, max_size=None)
    with pytest.raises(StopIteration) as end:
        next(parser)
    assert end.value.value == Frame(Opcode.BINARY, payload)
    assert not reader.buffer


def test_each_frame_has_a_new_mask() -> None:
    assert len({binary_frame(b"the same message") for _ in range(8)}) == 8
