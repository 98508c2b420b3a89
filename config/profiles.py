"""Profiles: the outside APIs that jobs may name. Read from the TOML file of `ASSAY_PROFILES_FILE` by entry points.

Where a key is to be found is part of a profile, the key itself never is: `read_key` gets it in the process that calls
the API, and nowhere else. `config/profiles.example.toml` shows every field.
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

#: The part of a URL that clients of chat APIs add by themselves; people paste it all the same.
CHAT_PATH = "/chat/completions"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class UnknownProfile(ValueError):
    """There is no such profile."""


class HostNotAllowed(UnknownProfile):
    """This host may not be called."""


class Profile(BaseModel):
    """One endpoint with its models, limits and prices."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    name: str = Field(pattern=f"^{NAME.pattern}$")
    base_url: str = Field(repr=False)
    api_key_env: str = ""
    """Variable of the worker's environment that holds the key."""
    api_key_file: Path | None = None
    models: tuple[str, ...] = Field(min_length=1)
    any_model: bool = False
    """Jobs may name others too."""
    rpm: int | None = Field(None, ge=1)
    """Requests a minute, for all processes together; None: no limit."""
    tpm: int | None = Field(None, ge=1)
    """Tokens a minute, asked and answered."""
    window_s: float = Field(60.0, ge=0.5, le=3600)
    """The span over which the API counts the two: a tenth of `rpm` in any six seconds is another limit than 60 s."""
    concurrency: int = Field(100, ge=1, le=10_000)
    """Calls in flight at most. How many there are adapts to what the API bears."""
    concurrency_start: int = Field(20, ge=1, le=10_000)
    concurrency_min: int = Field(10, ge=1, le=10_000)
    timeout_s: float = Field(60.0, gt=0, le=3600)
    """Of one try."""
    max_retries: int = Field(3, ge=0, le=100)
    """After errors of the API; to be told to slow down costs none."""
    circuit_failures: int = Field(10, ge=1)
    """Failures in a row, of all processes together, after which the API is let alone for a while."""
    circuit_open_s: float = Field(5.0, gt=0, le=600)
    """How long at first; doubles up to a minute."""
    price_in: float | None = Field(None, ge=0)
    """Per million tokens of the prompt."""
    price_out: float | None = Field(None, ge=0)
    currency: str = Field("USD", pattern=r"^[A-Z]{3}$")
    fallback: str = ""
    """Profile that answers when this one cannot."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Sent with every call; never shown."""
    supports_schema: Literal["auto"] | bool = "auto"
    """Whether the API can hold an answer to a JSON schema; `auto` finds out."""

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
            raise ValueError("must not hold Authorization: give the key by api_key_env or api_key_file")
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
        """Host and port, as they may be shown."""
        return urlsplit(self.base_url).netloc

    def cost_nano(self, prompt_tokens: int, completion_tokens: int) -> int | None:
        """Billionths of the currency, so that sums are exact; None without prices."""
        if self.price_in is None or self.price_out is None:
            return None
        return round((prompt_tokens * self.price_in + completion_tokens * self.price_out) * 1000)


class Profiles:
    """All profiles, by name; and those that clients make by giving a URL, where its host is permitted."""

    def __init__(self, *profiles: Profile, api_hosts: str = "") -> None:
        """Raises SettingsError with one line per mistake."""
        self._profiles = {profile.name: profile for profile in profiles}
        self._api_hosts = api_hosts
        if mistakes := list(self._mistakes()):
            raise SettingsError("\n".join(mistakes))

    def __iter__(self) -> Iterator[Profile]:
        return iter(self._profiles.values())

    def get(self, name: str) -> Profile:
        """The profile of this name, or of a URL. Raises UnknownProfile, of which HostNotAllowed is one."""
        if "://" in name:
            return self._of_url(name)
        if name not in self._profiles:
            known = ", ".join(self._profiles) or "none; ASSAY_PROFILES_FILE names the file that lists them"
            raise UnknownProfile(f"There is no profile {name[:64]!r}; there are: {known}.")
        return self._profiles[name]

    def _of_url(self, url: str) -> Profile:
        """One without a key: what a client gives is not trusted with ours."""
        try:
            base = require_allowed(url, self._api_hosts)
        except UnknownProfile:
            raise
        except ValueError as error:
            raise UnknownProfile(f"{url[:200]!r} {error}.") from error
        digest = hashlib.sha256(base.encode()).hexdigest()[:16]
        return Profile(name=f"url-{digest}", base_url=base, models=("default",), any_model=True)

    def find_by_endpoint(self, url: str, model: str) -> Profile | None:
        """The profile of a client's URL and model; of several on that host, the one with the very same URL."""
        base = normalized(url)
        same_host = [each for each in self if _endpoint(each.base_url) == _endpoint(base) and model in each.models]
        return next((each for each in same_host if each.base_url == base), same_host[0] if same_host else None)

    def _mistakes(self) -> Iterator[str]:
        for profile in self:
            seen = [profile.name]
            while following := self._profiles[seen[-1]].fallback:
                if following not in self._profiles:
                    if len(seen) == 1:
                        yield f"profile {profile.name}: its fallback {following} is not a profile"
                    break
                if following in seen:
                    if following == profile.name:
                        circle = " -> ".join([*seen, following])
                        yield f"profile {profile.name}: its fallbacks run in a circle ({circle})"
                    break
                seen.append(following)


def load_profiles(settings: Settings) -> Profiles:
    """The profiles of the settings; without a file the development API's. Reads no key.

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
    """The profile's key; None when it needs none. Raises SettingsError that says where it should have been."""
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
    """A base URL as it is called: without `/chat/completions`, slash or default port. Raises ValueError."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError("must be a URL such as https://api.example.com/v1") from error
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ValueError("must be a URL such as https://api.example.com/v1")
    if parts.username or parts.password:
        raise ValueError("must not hold a user or a password: give the key by api_key_env or api_key_file")
    if parts.query or parts.fragment:
        raise ValueError("must not have a query: what it says belongs into headers")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port in (None, _DEFAULT_PORTS[parts.scheme]) else f"{host}:{port}"
    return f"{parts.scheme}://{netloc}{parts.path.rstrip('/').removesuffix(CHAT_PATH).rstrip('/')}"


def require_allowed(url: str, api_hosts: str) -> str:
    """The URL of a client, normalized, if `ASSAY_API_HOSTS` permits its host. Raises HostNotAllowed; ValueError."""
    base = normalized(url)
    host, port = _endpoint(base)
    for entry in filter(None, (part.strip().lower() for part in api_hosts.split(","))):
        name, _, only = entry.partition(":")
        fits = host.endswith(name[1:]) if name.startswith("*.") else host == name
        if fits and (not only or only == str(port)):
            return base
    raise HostNotAllowed(f"The host {host} may not be called: name a profile, or let ASSAY_API_HOSTS permit it.")


def _endpoint(base: str) -> tuple[str, int]:
    parts = urlsplit(base)
    return (parts.hostname or "").lower(), parts.port or _DEFAULT_PORTS[parts.scheme]


def _sentence(name: str, location: tuple[int | str, ...], message: str) -> str:
    message = message.removeprefix("Value error, ")
    where = ".".join(str(part) for part in location if part not in ("literal['auto']", "bool"))
    return f"profile {name}: {where + ': ' if where else ''}{message[0].lower()}{message[1:]}"


def limits_of(profile: Profile) -> dict[str, Any]:
    """What of a profile may be changed while it is used."""
    return {"rpm": profile.rpm, "tpm": profile.tpm, "concurrency": profile.concurrency}
