"""Selects the server's API profile that judges for a manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from assay.errors import AssayError
from assay.rewards.length_penalty.config import DEFAULT_MODEL, LengthPenaltyConfig

_DEFAULT_PORTS = {"http": 80, "https": 443}


class ProfileMissing(AssayError, LookupError):
    """The server has no API profile for this endpoint and model."""


@dataclass(frozen=True)
class JudgeProfile:
    name: str
    model: str
    """Name of the model; empty for the profile's first model."""


def find_profile(views: Sequence[Mapping[str, Any]], config: LengthPenaltyConfig) -> JudgeProfile:
    """Select a profile from the list of `GET /v1/profiles`. Raise ProfileMissing, which says how to add a profile."""
    if config.profile:
        for view in views:
            if view["name"] == config.profile:
                return JudgeProfile(config.profile, _model(view, config))
        raise ProfileMissing(f"The server has no API profile {config.profile!r}. {_how_to_add(views, config)}")
    if config.api_endpoint:
        host = host_of(config.api_endpoint)
        for view in views:
            if view.get("host") == host and config.model_name in view["models"]:
                return JudgeProfile(view["name"], config.model_name)
        target = f"{host} with the model {config.model_name!r}"
        raise ProfileMissing(f"The server has no API profile for {target}. {_how_to_add(views, config)}")
    if [view["name"] for view in views] == ["development"]:
        return JudgeProfile("development", "")
    raise ProfileMissing(f"Set `profile`, or `api_endpoint` and `model_name`. {_how_to_add(views, config)}")


def host_of(url: str) -> str:
    """Return host and port in the server's notation: without the default port of the scheme."""
    parts = urlsplit(url.strip() if "//" in url else f"https://{url.strip()}")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return host if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f"{host}:{parts.port}"


def _shown(url: str) -> str:
    """Return the URL without user and password, as either may be an API key."""
    parts = urlsplit(url.strip() if "//" in url else f"https://{url.strip()}")
    return f"{parts.scheme}://{host_of(url)}{parts.path.rstrip('/')}"


def _model(view: Mapping[str, Any], config: LengthPenaltyConfig) -> str:
    if config.model_name in view["models"]:
        return config.model_name
    if config.model_name == DEFAULT_MODEL:  # the default, not a choice of the user
        return ""
    models = ", ".join(view["models"])
    raise ProfileMissing(f"The API profile {view['name']!r} has no model {config.model_name!r}; it has {models}.")


def _how_to_add(views: Sequence[Mapping[str, Any]], config: LengthPenaltyConfig) -> str:
    known = ", ".join(str(view["name"]) for view in views) or "no profiles"
    base = _shown(config.api_endpoint) if config.api_endpoint else "https://api.example.com/v1"
    return (
        f"It has: {known}. To add a profile, write this into the file ASSAY_PROFILES_FILE of the server and of its "
        f'workers, and restart them: [profiles.judge] base_url = "{base}", api_key_env = "JUDGE_API_KEY", '
        f'models = ["{config.model_name}"]'
    )
