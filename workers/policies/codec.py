"""Codec for msgpack with NumPy arrays, in the format of openpi's clients and servers.

Arrays of objects, records and complex numbers are refused in both directions: object arrays could run code, and no
server of the protocol accepts the other two. Decoded arrays are read-only views of the message.
"""

import math
from typing import Any

import msgpack
import numpy as np

_REFUSED = "OVc"


class CodecError(ValueError):
    """The value cannot be encoded, or the bytes are not a valid message."""


def encode(value: object) -> bytes:
    """Encode a value. Raises CodecError for a type that the protocol does not support."""
    try:
        packed: bytes = msgpack.packb(value, default=_pack)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"cannot be sent: {error}") from error
    return packed


def decode(message: bytes | bytearray) -> Any:
    """Decode a message. Raises CodecError for an invalid message."""
    try:
        return msgpack.unpackb(message, object_hook=_unpack)
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise CodecError(f"{type(error).__name__}: {error}"[:200]) from error


def _pack(value: object) -> object:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"the type {type(value).__name__} is not supported")
    if value.dtype.kind in _REFUSED:
        raise TypeError(f"arrays of {value.dtype} are refused")
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}


def _unpack(value: dict[Any, Any]) -> object:
    if b"__ndarray__" in value:
        data, dtype, shape = value[b"data"], _dtype(value[b"dtype"]), value[b"shape"]
        # numpy accepts a buffer that is too long, and with a wrong dtype it could read foreign bytes as objects.
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes do not fit {dtype} of shape {shape}")
        return np.ndarray(shape, dtype, data)
    if b"__npgeneric__" in value:
        return _dtype(value[b"dtype"]).type(value[b"data"])
    return value


def _dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind in _REFUSED:
        raise ValueError(f"arrays of {dtype} are refused")
    return dtype
