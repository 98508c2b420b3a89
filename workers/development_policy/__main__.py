"""`python -m workers.development_policy [--port 8000] [--latency-ms 50] [--share-error 0.1] ...`: serves until SIGTERM.

Every knob is an option; docs/policies.md explains them.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
from dataclasses import fields

from config.logging import configure_logging
from config.settings import LOOPBACK
from workers.development_policy import NOTICE
from workers.development_policy.knobs import Knobs
from workers.development_policy.server import serve
from workers.development_servers.knobs import WrongKnob, changed
from workers.processes.supervisor import EXIT_MISCONFIGURED

log = logging.getLogger("workers.development_policy")


def main() -> int:
    arguments = _parser().parse_args()
    configure_logging("policy", "INFO")
    if arguments.host not in LOOPBACK:
        print(f"--host {arguments.host}: the development policy serves loopback only.", file=sys.stderr)
        return EXIT_MISCONFIGURED
    try:
        given = {field.name: getattr(arguments, field.name) for field in fields(Knobs)}
        knobs = changed(Knobs(), {name: value for name, value in given.items() if value is not None})
        time.sleep(arguments.start_s)
        return asyncio.run(_run(arguments.host, arguments.port, knobs))
    except WrongKnob as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    except OSError as error:
        print(f"The development policy cannot serve port {arguments.port}: {error.strerror or error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m workers.development_policy", description=NOTICE)
    parser.add_argument("--host", default="127.0.0.1", help="a loopback address")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port, which is logged")
    parser.add_argument(
        "--start-s", type=float, default=0.0, help="seconds until it listens, as if a model were loaded"
    )
    for field in fields(Knobs):
        parser.add_argument(f"--{field.name.replace('_', '-')}", dest=field.name, metavar=str(field.default) or "KEY")
    return parser


async def _run(host: str, port: int, knobs: Knobs) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    def say(chosen: int) -> None:
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        log.info("development policy on ws://%s:%d; CUDA_VISIBLE_DEVICES %s; %s", host, chosen, devices, NOTICE)

    await serve(host, port, knobs, say, stopped)
    log.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
