"""`python -m web.tokens`: add, remove and list bearer tokens.

`add` prints the new token once; the file keeps only its hash.
"""

import argparse
import hashlib
import secrets
import sys
from pathlib import Path

from pydantic import ValidationError

from config.settings import SettingsError, load_settings
from web.http.auth.tokens import Token, read, write


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m web.tokens", description="Manage the bearer tokens of the API.")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="create a token and print it once")
    add.add_argument("name")
    add.add_argument("--items-per-minute", type=int)
    add.add_argument("--active-jobs", type=int)
    commands.add_parser("remove", help="remove a token").add_argument("name")
    commands.add_parser("list", help="list names and quotas")
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
            print(f"No token is named {given.name}; `list` shows the names.", file=sys.stderr)
            return 1
        write(path, others)
        return 0
    if len(others) < len(tokens):
        print(f"A token named {given.name} exists already: remove it first.", file=sys.stderr)
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
    print(
        f"Its hash is stored in {path}; set ASSAY_TOKENS_FILE={path}. This token is not shown again.", file=sys.stderr
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
