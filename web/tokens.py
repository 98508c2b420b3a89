"""Bearer tokens: `python -m web.tokens add NAME` makes one, prints it once, and keeps its hash.

The file has one JSON object a line and is read again when it changes, so adding and removing need no restart. A token
is 32 random bytes: nobody can guess one from its SHA-256, which is why the hash needs neither salt nor many rounds.
"""

import argparse
import hashlib
import hmac
import logging
import os
import secrets
import sys
import threading
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.settings import SettingsError, load_settings

log = logging.getLogger(__name__)


class Token(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    items_per_minute: int | None = Field(None, ge=1)
    active_jobs: int | None = Field(None, ge=1)


class Tokens:
    def __init__(self, path: Path) -> None:
        """Raises SettingsError when the file cannot be read, or lets nobody in."""
        self._path = path
        self._lock = threading.Lock()
        self._stamp = _stamp(path)
        self._tokens = read(path)
        if not self._tokens:
            raise SettingsError(
                f"ASSAY_TOKENS_FILE: {path} holds no token, so nobody could come in; "
                "make one with `python -m web.tokens add NAME`"
            )

    def find(self, given: str) -> Token | None:
        """The token that was given. Compares with all of them, each in constant time, so that time tells nothing."""
        digest = hashlib.sha256(given.encode()).hexdigest()
        found = None
        for token in self._current():
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return found

    def names(self) -> list[str]:
        return [token.name for token in self._current()]

    def _current(self) -> tuple[Token, ...]:
        if (stamp := _stamp(self._path)) != self._stamp:
            with self._lock:
                try:
                    self._tokens = read(self._path)
                except SettingsError as error:  # nobody is let in or locked out by a slip in the file
                    log.error("%s; the tokens read before stay in force", error)
                self._stamp = stamp
        return self._tokens


def _stamp(path: Path) -> tuple[int, int, int] | None:
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
    """Replace the file in one step: a reader sees the old one or the new one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text("".join(token.model_dump_json(exclude_none=True) + "\n" for token in tokens))
    beside.replace(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m web.tokens", description="Who may use the API.")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="make a token and print it, once")
    add.add_argument("name")
    add.add_argument("--items-per-minute", type=int)
    add.add_argument("--active-jobs", type=int)
    commands.add_parser("remove", help="forget a token").add_argument("name")
    commands.add_parser("list", help="show names and quotas")
    given = parser.parse_args(arguments)
    try:
        settings = load_settings()
        path = settings.tokens_file or settings.data_dir / "tokens.jsonl"
        return _run(given, path)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 78


def _run(given: argparse.Namespace, path: Path) -> int:
    tokens = read(path) if path.exists() else ()
    if given.command == "list":
        for token in tokens:
            print(token.name, *(f"{k}={v}" for k, v in token.model_dump(exclude={"name", "sha256"}).items() if v))
        return 0
    others = tuple(token for token in tokens if token.name != given.name)
    if given.command == "remove":
        if len(others) == len(tokens):
            print(f"There is no token named {given.name}.", file=sys.stderr)
            return 1
        write(path, others)
        return 0
    if len(others) < len(tokens):
        print(f"There is a token named {given.name} already: remove it first.", file=sys.stderr)
        return 1
    secret = f"assay_{secrets.token_urlsafe(32)}"
    try:
        token = Token(
            name=given.name,
            sha256=hashlib.sha256(secret.encode()).hexdigest(),
            items_per_minute=given.items_per_minute,
            active_jobs=given.active_jobs,
        )
    except ValidationError as error:
        first = error.errors()[0]
        print(f"{first['loc'][0]}: {first['msg']}", file=sys.stderr)
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, (*tokens, token))
    print(secret)
    print(f"Kept as a hash in {path}; set ASSAY_TOKENS_FILE={path}. This token is not shown again.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
