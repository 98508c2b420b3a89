"""Benchmark runner (`python -m bench`, `make bench`): measures the figures that Assay promises against their targets.

A run takes about an hour. Each part (`python -m bench judging`, ...) is a separate program; parts run sequentially, and
a part that fails or hangs does not stop the rest. Their output goes to the folder `bench_results_<time>/`. With
`--write`, the runner updates the part's table in docs/performance.md as soon as the part has ended. The exit code is 0
if every part ran to completion: a missed target is reported, but is not an error.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.catalogue import PARTS
from bench.processes import supervised_program
from bench.report import performance_page
from bench.report.figures import BRIEF, COLLECTED
from bench.report.performance_page import Line, Result
from tasks.measurement.machine import describe
from workers.devices.discovery import discover_gpus
from workers.devices.nvml import Nvml

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the running part, as Ctrl-C does
    folder: Path = arguments.output or Path(time.strftime("bench_results_%Y%m%d_%H%M%S"))
    folder.mkdir(parents=True, exist_ok=True)
    # Read the commit before `--write` changes the page: afterwards it would be marked as modified.
    machine = replace(describe((), ""), gpus=_gpus())
    results: list[Result] = []
    try:
        for name in arguments.parts or PARTS:
            print(f"\n== {PARTS[name].title}: {name}", flush=True)
            results.append(_run(name, folder.resolve(), arguments))
            if arguments.write:
                performance_page.write(PAGE, results[-1], folder, machine)
    except KeyboardInterrupt:
        print("\ninterrupted: the results do not include the running part")
        return 130
    finally:
        print("", *performance_page.summary(results), sep="\n", flush=True)
    return 1 if any(result.code for result in results) else 0


def _gpus() -> tuple[str, ...]:
    """Return the product names of the GPUs, or their indices if the driver does not answer."""
    devices, _ = discover_gpus(os.environ)
    return tuple(gpu.name for gpu in Nvml(devices).read()) or devices


def _run(name: str, folder: Path, arguments: argparse.Namespace) -> Result:
    collected, log, part = folder / f"{name}.jsonl", folder / f"{name}.log", PARTS[name]
    collected.write_text("")
    path = os.pathsep.join(filter(None, (str(ROOT / "client" / "src"), os.environ.get("PYTHONPATH", ""))))
    environment = {COLLECTED: str(collected), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    if arguments.brief:
        environment[BRIEF] = "1"
    started = time.monotonic()
    limit_s = 60 * (arguments.minutes or part.minutes)
    code = supervised_program.run(part.command(name, folder, arguments.brief), log, limit_s, environment)
    records = [json.loads(each) for each in collected.read_text().splitlines()]
    lines = [Line(**each) for each in records if "note" not in each]
    notes = [each["note"] for each in records if "note" in each]
    last = [each for each in log.read_text(errors="replace").splitlines() if each.strip()][-1:]
    return Result(name, code, time.monotonic() - started, lines, notes, "".join(last) if code else "")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure Assay's figures and compare them with their targets."
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"parts to run (default: every part): {', '.join(PARTS)}"
    )
    parser.add_argument("--output", type=Path, help="folder for logs and results (bench_results_<time>)")
    parser.add_argument("--write", action="store_true", help="update the tables of docs/performance.md")
    parser.add_argument("--brief", action="store_true", help="smoke test: small workloads, a single repetition")
    parser.add_argument("--minutes", type=float, help="time limit for a part, instead of its own limit")
    arguments = parser.parse_args(argv)
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    if arguments.brief and arguments.write:
        parser.error("--brief is a smoke test: omit --write")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
