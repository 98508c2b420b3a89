"""Identity of the policy that a server serves, from the server's metadata: an input of every episode's result."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Metadata fields in which servers report name and version, best first. The protocol itself requires neither.
_NAMES = ("policy_id", "policy", "name", "config_name", "config")
_VERSIONS = ("policy_version", "version", "revision", "checkpoint", "checkpoint_dir", "checkpoint_step", "step")


@dataclass(frozen=True, slots=True)
class PolicyIdentity:
    name: str
    version: str
    """Empty: unknown, so that two checkpoints cannot be distinguished and nothing may be cached."""
    digest: str
    """Hash of the server's whole metadata message: changes with any field."""

    @property
    def is_known(self) -> bool:
        return bool(self.version)


NOBODY = PolicyIdentity("", "", "")


def identify(greeting: bytes, metadata: Mapping[str, Any], version: str = "") -> PolicyIdentity:
    """Read the identity from a greeting. `version` is for servers that do not report a version."""
    digest = hashlib.sha256(greeting).hexdigest()[:16]
    return PolicyIdentity(_first(metadata, _NAMES) or "policy", _first(metadata, _VERSIONS) or version, digest)


def _first(metadata: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = metadata.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value):
            return str(value)
    return ""
