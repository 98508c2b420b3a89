"""Command `python -m bench.soak`. The exit code is 0 only if every consistency check passes."""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.soak.report import is_consistent, write
from bench.soak.run import Soak


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description="Run mixed jobs on a private system while its processes and servers are killed at random. At the "
        "end every accepted item must have exactly one outcome, memory must be flat, and no process, key or file may "
        "be left over. Takes about two minutes longer than --minutes, until the jobs have ended and expired. "
        "docs/operations.md explains the report.",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of work and faults (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="random seed of jobs and faults (default: random)")
    parser.add_argument("--fault-s", type=float, default=5.0, help="mean seconds between two faults (default: 5)")
    parser.add_argument(
        "--output", type=Path, default=None, help="folder for report, logs and data (default: soak_results_<time>)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    folder: Path = options.output or Path(f"soak_results_{time.strftime('%Y%m%d_%H%M%S')}")
    if folder.exists() and any(folder.iterdir()):
        print(f"{folder} is not empty: choose another folder with --output.", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    started = time.monotonic()

    def progress(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    progress(f"seed {seed}, {options.minutes:g} minutes")
    run, accounting = Soak(folder.resolve(), options.minutes, seed, options.fault_s, progress)()
    write(folder, run, accounting)
    for finding in accounting.findings[:10]:
        progress(f"{finding.check}: {finding.where}: {finding.problem}")
    verdict = "accounting is consistent" if is_consistent(accounting) else f"{len(accounting.findings)} findings"
    progress(f"{verdict}: {folder / 'report.md'}")
    return 0 if is_consistent(accounting) else 1


if __name__ == "__main__":
    sys.exit(main())
