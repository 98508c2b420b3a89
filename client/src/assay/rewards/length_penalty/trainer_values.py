"""Converts values of other libraries (OmegaConf configs, NumPy arrays) to plain Python values that JSON can hold."""

from __future__ import annotations

from typing import Any


def as_plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bytes, bool, int, float)):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "items"):
        return {str(name): as_plain(each) for name, each in value.items()}
    if hasattr(value, "__iter__"):
        return [as_plain(each) for each in value]
    return value
