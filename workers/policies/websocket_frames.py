"""Encoder of WebSocket client frames, masked with NumPy.

websocket-client masks in Python: 2 ms for two camera images, where this takes 0.4 ms. The frame is encoded before a
server is acquired, so that no other episode waits for it.
"""

import os
import struct

import numpy as np

_FINAL_BINARY, _MASKED = 0x82, 0x80


def binary_frame(message: bytes) -> bytes:
    length = len(message)
    if length < 126:
        header = struct.pack("!BB", _FINAL_BINARY, _MASKED | length)
    elif length < 1 << 16:
        header = struct.pack("!BBH", _FINAL_BINARY, _MASKED | 126, length)
    else:
        header = struct.pack("!BBQ", _FINAL_BINARY, _MASKED | 127, length)
    key = os.urandom(4)
    whole = length - length % 4
    body = np.frombuffer(message, np.uint32, whole // 4) ^ np.frombuffer(key, np.uint32)
    rest = bytes(byte ^ mask for byte, mask in zip(message[whole:], key, strict=False))
    return b"".join((header, key, body.tobytes(), rest))
