"""The version of this client, as its distribution says."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("assay-client")
    except PackageNotFoundError:  # run from a checkout
        return "0.1.0.dev0"


VERSION = _installed()
