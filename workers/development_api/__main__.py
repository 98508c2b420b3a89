"""`python -m workers.development_api [--port N] [--latency-ms 50-500] [--share-429 0.1] ...`: serves until SIGTERM.

Every knob is an option; docs/development_api.md explains them.
`--check` checks whether a running server answers, for containers.
"""

import argparse
import asyncio
import logging
import signal
import sys
import urllib.request
from dataclasses import fields

from config.logging import configure_logging
from config.settings import LOOPBACK, SettingsError, load_settings
from workers.development_api import NOTICE
from workers.development_api.knobs import Knobs
from workers.development_api.server import serve
from workers.development_servers.knobs import WrongKnob, changed
from workers.processes.supervisor import EXIT_MISCONFIGURED

log = logging.getLogger("workers.development_api")


def main() -> int:
    try:
        settings = load_settings()
        arguments = _parser(settings.development_api_port).parse_args()
        configure_logging("judge", settings.log_level, form=settings.log_format)
        if arguments.check:
            return _check(arguments.port)
        if arguments.host not in LOOPBACK:
            print(f"--host {arguments.host}: the development API serves loopback only.", file=sys.stderr)
            return EXIT_MISCONFIGURED
        given = {field.name: getattr(arguments, field.name) for field in fields(Knobs)}
        knobs = changed(Knobs(), {name: value for name, value in given.items() if value is not None})
        return asyncio.run(_run(arguments.host, arguments.port, knobs))
    except (SettingsError, WrongKnob) as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    except OSError as error:
        print(f"The development API cannot serve port {arguments.port}: {error.strerror or error}", file=sys.stderr)
        return 1


def _parser(port: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workers.development_api", description=NOTICE)
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--port", type=int, default=port, help="0: any free port, which is logged")
    parser.add_argument("--check", action="store_true", help="check whether a running server answers")
    for field in fields(Knobs):
        parser.add_argument(f"--{field.name.replace('_', '-')}", dest=field.name, metavar=str(field.default) or "KEY")
    return parser


async def _run(host: str, port: int, knobs: Knobs) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    def say(chosen: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        log.info("development API on http://%s:%d/v1; %s", shown, chosen, NOTICE)

    await serve(host, port, knobs, say, stopped)
    log.info("stopped")
    return 0


def _check(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            return 0
    except OSError as error:
        print(f"The development API does not answer on port {port} ({error}).", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
