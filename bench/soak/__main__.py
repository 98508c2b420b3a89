"""`python -m bench.soak`: exit code 0 only if the books balance."""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.soak.report import balances, write
from bench.soak.run import Soak


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.soak",
        description="Mixed jobs on a system of its own, while its processes and servers are killed at random; at the "
        "end every accepted item must have exactly one outcome, memory be flat, and nothing be left. Takes some two "
        "minutes longer than --minutes: jobs end and expire first. docs/operations.md says how to read the report.",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of work and faults (default: 10)")
    parser.add_argument("--seed", type=int, default=None, help="of jobs and faults, to draw the same (default: any)")
    parser.add_argument("--fault-s", type=float, default=5.0, help="seconds between two faults (default: 5)")
    parser.add_argument(
        "--output", type=Path, default=None, help="folder for report, logs and data (default: soak_results_<time>)"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    folder: Path = options.output or Path(f"soak_results_{time.strftime('%Y%m%d_%H%M%S')}")
    if folder.exists() and any(folder.iterdir()):
        print(f"{folder} is not empty: name another folder with --output.", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    say(f"seed {seed}, {options.minutes:g} minutes")
    run, books = Soak(folder.resolve(), options.minutes, seed, options.fault_s, say)()
    write(folder, run, books)
    for finding in books.findings[:10]:
        say(f"{finding.book}: {finding.where}: {finding.what}")
    say(f"{'the books balance' if balances(books) else f'{len(books.findings)} findings'}: {folder / 'report.md'}")
    return 0 if balances(books) else 1


if __name__ == "__main__":
    sys.exit(main())
