"""msgpack with NumPy arrays, as openpi's clients and servers exchange them.

Arrays of objects, records and complex numbers are refused both ways: the first could run code, the others no server of
the protocol takes. Decoded arrays are read-only views of the message.
"""

import math
from typing import Any

import msgpack
import numpy as np

_REFUSED = "OVc"


class CodecError(ValueError):
    """This cannot be written, or is no message."""


def encode(value: object) -> bytes:
    """Raises CodecError for what the protocol has no form for."""
    try:
        packed: bytes = msgpack.packb(value, default=_pack)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError(f"cannot be sent: {error}") from error
    return packed


def decode(message: bytes | bytearray) -> Any:
    """Raises CodecError when the message is none."""
    try:
        return msgpack.unpackb(message, object_hook=_unpack)
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise CodecError(f"{type(error).__name__}: {error}"[:200]) from error


def _pack(value: object) -> object:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"there is no form for {type(value).__name__}")
    if value.dtype.kind in _REFUSED:
        raise TypeError(f"arrays of {value.dtype} are refused")
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}


def _unpack(value: dict[Any, Any]) -> object:
    if b"__ndarray__" in value:
        data, dtype, shape = value[b"data"], _dtype(value[b"dtype"]), value[b"shape"]
        # numpy would take a buffer that is too long; and a wrong type could lay its objects into foreign bytes.
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes are no {dtype} of shape {shape}")
        return np.ndarray(shape, dtype, data)
    if b"__npgeneric__" in value:
        return _dtype(value[b"dtype"]).type(value[b"data"])
    return value


def _dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind in _REFUSED:
        raise ValueError(f"arrays of {dtype} are refused")
    return dtype
