"""Flower process: serves the address of the settings, with a password, and read-only by default.

`python -m workers.processes.flower` runs Flower itself, with the same logging as every Assay process; users run
`python -m workers.launch`.
"""

import os
import secrets
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from config.logging import configure_logging
from config.settings import Settings, SettingsError, load_settings
from workers.processes.supervisor import EXIT_MISCONFIGURED

#: File, in the data folder, of the user and password that are generated if tokens are set and Flower has no password.
AUTH_FILE = "flower_auth"
#: Columns of Flower's task list: name and arguments first. Tasks have no result and no positional arguments.
COLUMNS = "name,kwargs,state,worker,received,started,runtime,uuid"
#: Maximum tasks that Flower keeps in memory, the latest first; each takes some 6 KB. Flower's default is 100,000.
TASKS = 2000


def flower_environment(settings: Settings) -> dict[str, str]:
    """Return Flower's configuration as variables, not arguments: `ps` shows arguments to every user."""
    environment = {
        "FLOWER_ADDRESS": settings.flower_host,
        "FLOWER_PORT": str(settings.flower_port),
        "FLOWER_READ_ONLY": str(settings.flower_read_only).lower(),
        "FLOWER_TASKS_COLUMNS": COLUMNS,
        "FLOWER_MAX_TASKS": str(TASKS),
    }
    auth = settings.flower_basic_auth
    if not auth and settings.tokens_file:
        auth = _generated_auth(settings.data_dir / AUTH_FILE)
    if auth:
        environment["FLOWER_BASIC_AUTH"] = auth
    return environment


def _generated_auth(path: Path) -> str:
    """Return the user and password in this file, generated on first use: a system with tokens must not leave Flower
    without a password."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # Written atomically: a concurrent process must never read an empty password. Its mode is 600 from the start.
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:
            file.write(f"assay:{secrets.token_urlsafe(24)}\n")
            file.flush()
            with suppress(FileExistsError):  # a concurrent process was faster
                os.link(file.name, path)
    auth = path.read_text().strip()
    if ":" not in auth:
        raise SettingsError(f"{path} must contain user:password for Flower, and does not: correct or delete it")
    return auth


def main() -> int:
    try:
        settings = load_settings()
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    configure_logging("flower", settings.log_level, form=settings.log_format)
    from celery.bin.celery import celery  # imports Flower, which launchers do not need

    # Flower's framework would configure its own logging.
    celery.main(["-A", "workers.celery", "flower", "--logging=none"], prog_name="flower")
    return 0


if __name__ == "__main__":
    sys.exit(main())
