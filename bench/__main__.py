"""`python -m bench`: every figure that Assay promises, beside its target; `make bench` runs it. Takes about an hour.

Each part is a program of its own (`python -m bench.judging`, ...), run one after the other; one that fails or hangs
does not keep the others from running. What they print goes to a folder, `bench_results_<time>/`; with `--write` the
tables of docs/performance.md are made of it, each as soon as its part has ended. The exit code is 0 if every part ran
to its end: a target that is missed is told, and no failure.
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

from bench import page, supervised
from bench.page import Line, Result
from bench.parts import PARTS
from bench.spread import BRIEF, COLLECTED
from tasks.benchmarks.machine import describe
from workers.devices import discover_gpus
from workers.nvml import Nvml

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what runs, as Ctrl-C does
    folder: Path = arguments.output or Path(time.strftime("bench_results_%Y%m%d_%H%M%S"))
    folder.mkdir(parents=True, exist_ok=True)
    # Before the page is written to, which changes the commit's name.
    machine = replace(describe((), ""), gpus=_gpus())
    results: list[Result] = []
    try:
        for name in arguments.parts or PARTS:
            print(f"\n== {PARTS[name].title}: {name}", flush=True)
            results.append(_run(name, folder.resolve(), arguments))
            if arguments.write:
                page.write(PAGE, results[-1], folder, machine)
    except KeyboardInterrupt:
        print("\ninterrupted: the part that ran is not in the results")
        return 130
    finally:
        print("", *page.summary(results), sep="\n", flush=True)
    return 1 if any(result.code for result in results) else 0


def _gpus() -> tuple[str, ...]:
    """By their products, or by index where the driver is mute."""
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
    bound_s = 60 * (arguments.minutes or part.minutes)
    code = supervised.run(part.command(name, folder, arguments.brief), log, bound_s, environment)
    told = [json.loads(each) for each in collected.read_text().splitlines()]
    lines = [Line(**each) for each in told if "note" not in each]
    notes = [each["note"] for each in told if "note" in each]
    last = [each for each in log.read_text(errors="replace").splitlines() if each.strip()][-1:]
    return Result(name, code, time.monotonic() - started, lines, notes, "".join(last) if code else "")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Every figure beside its target.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    parser.add_argument("--output", type=Path, help="folder of what is printed (bench_results_<time>)")
    parser.add_argument("--write", action="store_true", help="write the tables of docs/performance.md anew")
    parser.add_argument("--brief", action="store_true", help="all of it small and once, to see that it runs")
    parser.add_argument("--minutes", type=float, help="after which a part is ended, instead of its own bound")
    arguments = parser.parse_args(argv)
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if arguments.brief and arguments.write:
        parser.error("--brief measures nothing worth writing")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
