"""API profiles: the outside APIs that jobs may name. Entry points read them from the TOML file of
`ASSAY_PROFILES_FILE`.

A profile contains the location of its key, never the key itself: only the process that calls the API reads the key, by
`read_key`. `config/profiles.example.toml` shows every field.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from config.settings import Settings, SettingsError

#: Path that clients of chat APIs append to the base URL; removed when a profile's URL includes it.
CHAT_PATH = "/chat/completions"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class UnknownProfile(ValueError):
    """The profile does not exist: name a profile of ASSAY_PROFILES_FILE."""


class HostNotAllowed(UnknownProfile):
    """The host is not allowed: name a profile, or add the host to ASSAY_API_HOSTS."""


class Profile(BaseModel):
    """An API endpoint with its models, limits and prices."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    name: str = Field(pattern=f"^{NAME.pattern}$")
    base_url: str = Field(repr=False)
    api_key_env: str = ""
    """Variable of the worker's environment with the key."""
    api_key_file: Path | None = None
    models: tuple[str, ...] = Field(min_length=1)
    any_model: bool = False
    """Whether jobs may also name models that are not listed."""
    rpm: int | None = Field(None, ge=1)
    """Maximum requests per minute, summed over the processes of the cluster; None: no limit."""
    tpm: int | None = Field(None, ge=1)
    """Maximum tokens per minute, of prompts and replies together."""
    window_s: float = Field(60.0, ge=0.5, le=3600)
    """Window over which the API counts both limits: a tenth of `rpm` per 6 s is stricter than `rpm` per 60 s."""
    concurrency: int = Field(100, ge=1, le=10_000)
    """Maximum calls in flight. The actual limit adapts to the load that the API accepts."""
    concurrency_start: int = Field(20, ge=1, le=10_000)
    concurrency_min: int = Field(10, ge=1, le=10_000)
    timeout_s: float = Field(60.0, gt=0, le=3600)
    """Timeout of each try."""
    max_retries: int = Field(3, ge=0, le=100)
    """Maximum retries after errors of the API; rate-limit replies (429) do not count."""
    circuit_failures: int = Field(10, ge=1)
    """Consecutive failures, counted over the processes of the cluster, after which the circuit opens."""
    circuit_open_s: float = Field(5.0, gt=0, le=600)
    """Initial time for which the circuit stays open; doubles up to a minute."""
    price_in: float | None = Field(None, ge=0)
    """Per million tokens of the prompt."""
    price_out: float | None = Field(None, ge=0)
    currency: str = Field("USD", pattern=r"^[A-Z]{3}$")
    fallback: str = ""
    """Profile that answers when this API fails."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Headers sent with every call; never shown."""
    supports_schema: Literal["auto"] | bool = "auto"
    """Whether the API supports JSON-schema output; `auto`: detect it by a call."""

    @field_validator("base_url")
    @classmethod
    def _is_base_url(cls, value: str) -> str:
        return normalized(value)

    @field_validator("api_key_env")
    @classmethod
    def _is_variable(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
            raise ValueError("must be the name of an environment variable, not the key itself")
        return value

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        if any(name.lower() == "authorization" for name in value):
            raise ValueError("must not contain Authorization: give the key by api_key_env or api_key_file")
        return value

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.api_key_env and self.api_key_file:
            raise ValueError("give api_key_env or api_key_file, not both")
        if (self.price_in is None) != (self.price_out is None):
            raise ValueError("give both price_in and price_out, or neither")
        return self

    @property
    def host(self) -> str:
        """Host and port, for logs and pages."""
        return urlsplit(self.base_url).netloc

    def cost_nano(self, prompt_tokens: int, completion_tokens: int) -> int | None:
        """Return the cost in billionths of the currency, so that sums are exact; None without prices."""
        if self.price_in is None or self.price_out is None:
            return None
        return round((prompt_tokens * self.price_in + completion_tokens * self.price_out) * 1000)


class Profiles:
    """The profiles by name, and temporary profiles for URLs of clients, if `ASSAY_API_HOSTS` allows their host."""

    def __init__(self, *profiles: Profile, api_hosts: str = "") -> None:
        """Raises SettingsError with a line per mistake."""
        self._profiles = {profile.name: profile for profile in profiles}
        self._api_hosts = api_hosts
        if mistakes := list(self._mistakes()):
            raise SettingsError("\n".join(mistakes))

    def __iter__(self) -> Iterator[Profile]:
        return iter(self._profiles.values())

    def get(self, name: str) -> Profile:
        """Return the profile of a name or a URL. Raises UnknownProfile, or its subclass HostNotAllowed."""
        if "://" in name:
            return self._of_url(name)
        if name not in self._profiles:
            known = ", ".join(self._profiles)
            remedy = f"use {known}" if known else "add profiles to the file of ASSAY_PROFILES_FILE"
            raise UnknownProfile(f"Unknown profile {name[:64]!r}: {remedy}.")
        return self._profiles[name]

    def _of_url(self, url: str) -> Profile:
        """Return a profile without a key: a URL of a client must not receive the server's keys."""
        try:
            base = require_allowed(url, self._api_hosts)
        except UnknownProfile:
            raise
        except ValueError as error:
            raise UnknownProfile(f"{url[:200]!r} {error}.") from error
        digest = hashlib.sha256(base.encode()).hexdigest()[:16]
        return Profile(name=f"url-{digest}", base_url=base, models=("default",), any_model=True)

    def _mistakes(self) -> Iterator[str]:
        for profile in self:
            seen = [profile.name]
            while following := self._profiles[seen[-1]].fallback:
                if following not in self._profiles:
                    if len(seen) == 1:
                        yield f"profile {profile.name}: its fallback {following} is not a profile: correct the name"
                    break
                if following in seen:
                    if following == profile.name:
                        circle = " -> ".join([*seen, following])
                        yield f"profile {profile.name}: its fallbacks form a cycle ({circle}): remove one of them"
                    break
                seen.append(following)


def load_profiles(settings: Settings) -> Profiles:
    """Load the profiles of the settings; without a file, the profile of the development API. Reads no keys.

    Raises SettingsError with a line per mistake.
    """
    if settings.profiles_file is None:
        return Profiles(
            Profile(
                name="development",
                base_url=settings.development_api_url,
                models=("development", "development-large"),
                concurrency=256,
                concurrency_start=64,
            ),
            api_hosts=settings.api_hosts,
        )
    return read_profiles(settings.profiles_file, settings.api_hosts)


def read_profiles(path: Path, api_hosts: str = "") -> Profiles:
    try:
        tables = tomllib.loads(path.read_text()).get("profiles", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"ASSAY_PROFILES_FILE: {path} cannot be read ({error})") from error
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise SettingsError(f"ASSAY_PROFILES_FILE: {path}: write each profile as a table [profiles.NAME]")
    profiles, mistakes = [], []
    for name, table in tables.items():
        try:
            profiles.append(Profile.model_validate(table | {"name": name}))
        except ValidationError as error:
            mistakes += [_sentence(name, detail["loc"], detail["msg"]) for detail in error.errors()]
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return Profiles(*profiles, api_hosts=api_hosts)


def read_key(profile: Profile, environment: Mapping[str, str]) -> SecretStr | None:
    """Return the profile's key; None when the API needs no key. Raises SettingsError that names the missing source."""
    if profile.api_key_env:
        if not (key := environment.get(profile.api_key_env, "").strip()):
            raise SettingsError(f"profile {profile.name}: the variable {profile.api_key_env} is not set")
        return SecretStr(key)
    if profile.api_key_file:
        try:
            key = profile.api_key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text"
            raise SettingsError(f"profile {profile.name}: its api_key_file cannot be read ({reason})") from error
        if not key:
            raise SettingsError(f"profile {profile.name}: its api_key_file is empty")
        return SecretStr(key)
    return None


def normalized(url: str) -> str:
    """Normalize a base URL: remove `/chat/completions`, the last slash and a default port. Raises ValueError."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError("must be a URL such as https://api.example.com/v1") from error
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError("must be a URL such as https://api.example.com/v1")
    if parts.username or parts.password:
        raise ValueError("must not contain a user or a password: give the key by api_key_env or api_key_file")
    if parts.query or parts.fragment:
        raise ValueError("must not have a query: move its parameters into headers")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port in (None, _DEFAULT_PORTS[parts.scheme]) else f"{host}:{port}"
    return f"{parts.scheme}://{netloc}{parts.path.rstrip('/').removesuffix(CHAT_PATH).rstrip('/')}"


def require_allowed(url: str, api_hosts: str) -> str:
    """Return a client's URL, normalized. Raises HostNotAllowed unless `ASSAY_API_HOSTS` has its host; ValueError."""
    base = normalized(url)
    host, port = _endpoint(base)
    for entry in filter(None, (part.strip().lower() for part in api_hosts.split(","))):
        name, _, only = entry.partition(":")
        fits = host.endswith(name[1:]) if name.startswith("*.") else host == name
        if fits and (not only or only == str(port)):
            return base
    raise HostNotAllowed(f"The host {host} is not allowed: name a profile, or add the host to ASSAY_API_HOSTS.")


def _endpoint(base: str) -> tuple[str, int]:
    parts = urlsplit(base)
    return (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS[parts.scheme]


def _sentence(name: str, location: tuple[int | str, ...], message: str) -> str:
    message = message.removeprefix("Value error, ")
    where = ".".join(str(part) for part in location if part not in ("literal['auto']", "bool"))
    return f"profile {name}: {where + ': ' if where else ''}{message[0].lower()}{message[1:]}"


def limits_of(profile: Profile) -> dict[str, Any]:
    """Return the limits of a profile that can be changed at run time."""
    return {"rpm": profile.rpm, "tpm": profile.tpm, "concurrency": profile.concurrency}
