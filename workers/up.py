"""Launcher of the whole system on this machine: Redis if no setting names one, then every line of the Procfile.

python -m workers.up                            until Ctrl-C; prints the addresses as soon as every part answers
python -m workers.up --run -- assay infer ...   for a single command; stops when the command ends
"""

import argparse
import sys
from pathlib import Path

from config.logging import configure_logging
from config.settings import SettingsError, load_settings
from tasks.errors import AssayError
from workers.processes.embedded_redis import RedisServerMissing
from workers.processes.supervisor import EXIT_MISCONFIGURED
from workers.system.foreground import run_until_stopped
from workers.system.one_command import EXIT_INTERRUPTED, run_command

PROCFILE = Path("Procfile")


def main() -> int:
    argv = sys.argv[1:]
    is_for_one_command = argv[:1] == ["--run"]
    try:
        if is_for_one_command:
            return run_command(argv[2:] if argv[1:2] == ["--"] else argv[1:], PROCFILE)
        argparse.ArgumentParser(
            prog="python -m workers.up", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        ).parse_args()
        settings = load_settings()
        configure_logging("up", settings.log_level, form=settings.log_format)
        return run_until_stopped(settings, PROCFILE)
    except (SettingsError, AssayError, RedisServerMissing) as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    except KeyboardInterrupt:  # before the signal handlers are installed
        return EXIT_INTERRUPTED if is_for_one_command else 0


if __name__ == "__main__":
    sys.exit(main())
