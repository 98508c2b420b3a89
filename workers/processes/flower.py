"""How Flower is started: on the address of the settings, with a password, and without a hand on the workers.

`python -m workers.processes.flower` is Flower itself, which logs as all our processes do; people use
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

#: File, in the data folder, of the user and password that are made where tokens are set and Flower has none.
AUTH_FILE = "flower_auth"
#: What its list of tasks shows: first what the task is about. There is no result, and no positional argument.
COLUMNS = "name,kwargs,state,worker,received,started,runtime,uuid"
#: Tasks that it remembers, the last ones; it takes some 6 KB for each. By itself it would keep 100,000.
TASKS = 2000


def flower_environment(settings: Settings) -> dict[str, str]:
    """By variables, not arguments: `ps` shows arguments to everybody."""
    environment = {
        "FLOWER_ADDRESS": settings.flower_host,
        "FLOWER_PORT": str(settings.flower_port),
        "FLOWER_READ_ONLY": str(settings.flower_read_only).lower(),
        "FLOWER_TASKS_COLUMNS": COLUMNS,
        "FLOWER_MAX_TASKS": str(TASKS),
    }
    if auth := settings.flower_basic_auth or (_kept(settings.data_dir / AUTH_FILE) if settings.tokens_file else ""):
        environment["FLOWER_BASIC_AUTH"] = auth
    return environment


def _kept(path: Path) -> str:
    """The user and password in this file, made on first use: who asks for tokens does not mean to leave Flower open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # Whole or not there: an empty one would open Flower to everybody. Its mode is 600 from the start.
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:
            file.write(f"assay:{secrets.token_urlsafe(24)}\n")
            file.flush()
            with suppress(FileExistsError):  # another one was faster
                os.link(file.name, path)
    auth = path.read_text().strip()
    if ":" not in auth:
        raise SettingsError(f"{path} is to hold user:password for Flower, and does not: mend it, or delete it")
    return auth


def main() -> int:
    try:
        settings = load_settings()
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    configure_logging("flower", settings.log_level, form=settings.log_format)
    from celery.bin.celery import celery  # with it all of Flower, which launchers that look at this module do not need

    # Flower's framework would set up logging of its own.
    celery.main(["-A", "workers.celery", "flower", "--logging=none"], prog_name="flower")
    return 0


if __name__ == "__main__":
    sys.exit(main())
