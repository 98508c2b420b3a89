"""Version of this client, read from the metadata of the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("assay-client")
    except PackageNotFoundError:  # runs from a checkout, without an installed distribution
        return "0.1.0.dev0"


VERSION = _installed()
