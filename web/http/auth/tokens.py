"""The file of bearer tokens: a JSON object per line, with the SHA-256 of the token; the token itself is not stored.

A changed file is read again, so tokens are added and removed without a restart. A token is 32 random bytes: it cannot
be guessed from its SHA-256, so the hash needs neither a salt nor many rounds. `python -m web.tokens` writes the file.
"""

import hashlib
import hmac
import logging
import os
import threading
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.settings import SettingsError

log = logging.getLogger(__name__)


class Token(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    items_per_minute: int | None = Field(None, ge=1)
    active_jobs: int | None = Field(None, ge=1)


class Tokens:
    def __init__(self, path: Path) -> None:
        """Raises SettingsError when the file cannot be read, or holds no token."""
        self._path = path
        self._lock = threading.Lock()
        self._version = _version(path)
        self._tokens = read(path)
        if not self._tokens:
            raise SettingsError(
                f"ASSAY_TOKENS_FILE: {path} holds no token, so every request would be rejected; "
                "create a token with `python -m web.tokens add NAME`"
            )

    def find(self, secret: str) -> Token | None:
        """Return the token of this secret. Each hash is compared in constant time, to prevent timing attacks."""
        digest = hashlib.sha256(secret.encode()).hexdigest()
        found = None
        for token in self._current():
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return found

    def names(self) -> list[str]:
        return [token.name for token in self._current()]

    def _current(self) -> tuple[Token, ...]:
        if (version := _version(self._path)) != self._version:
            with self._lock:
                try:
                    self._tokens = read(self._path)
                except SettingsError as error:  # a mistake in the file must neither admit nor lock out clients
                    log.error("%s; the tokens read before stay valid; correct the file", error)
                self._version = version
        return self._tokens


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def read(path: Path) -> tuple[Token, ...]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"ASSAY_TOKENS_FILE: {path} cannot be read ({error})") from error
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            token = Token.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise SettingsError(f"ASSAY_TOKENS_FILE: line {number} of {path}: {where} {first['msg']}") from error
        if token.name in tokens:
            raise SettingsError(f"ASSAY_TOKENS_FILE: line {number} of {path}: a second token named {token.name}")
        tokens[token.name] = token
    return tuple(tokens.values())


def write(path: Path, tokens: tuple[Token, ...]) -> None:
    """Replace the file atomically: a reader sees the old file or the new file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text("".join(token.model_dump_json(exclude_none=True) + "\n" for token in tokens))
    beside.replace(path)
