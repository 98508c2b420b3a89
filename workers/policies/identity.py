"""Which policy a server serves, from what it says of itself: part of what determines an episode."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Where servers of the protocol put them, best first. The protocol itself asks for neither.
_NAMES = ("policy_id", "policy", "name", "config_name", "config")
_VERSIONS = ("policy_version", "version", "revision", "checkpoint", "checkpoint_dir", "checkpoint_step", "step")


@dataclass(frozen=True, slots=True)
class PolicyIdentity:
    name: str
    version: str
    """Empty: unknown, so that one checkpoint cannot be told from the next and nothing may be cached."""
    digest: str
    """Of all that the server says of itself: changes with anything."""

    @property
    def is_known(self) -> bool:
        return bool(self.version)


NOBODY = PolicyIdentity("", "", "")


def identify(greeting: bytes, metadata: Mapping[str, Any], version: str = "") -> PolicyIdentity:
    """`version`: for servers that do not say it themselves."""
    digest = hashlib.sha256(greeting).hexdigest()[:16]
    return PolicyIdentity(_first(metadata, _NAMES) or "policy", _first(metadata, _VERSIONS) or version, digest)


def _first(metadata: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = metadata.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value):
            return str(value)
    return ""
