"""`python -m bench`: every figure that Assay promises, beside its target; `make bench` runs it. Takes most of an hour.

Each part is a program of its own (`python -m bench.judging`, ...), run one after the other. What they print goes to a
folder, `bench_results_<time>/`; with `--write` the tables of docs/performance.md are made of it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from bench import page
from bench.spread import COLLECTED

ROOT = Path(__file__).parent.parent
PEERS, BENCHMARK = "peers", "benchmark"
#: The parts, by what they measure.
PARTS = {
    "core": "The job core",
    "large": "A million items",
    "http": "The HTTP API",
    "dashboard": "The dashboard",
    "judging": "Judging",
    "rewards": "Rewards for a trainer",
    "rollouts": "Rollouts",
    "engines": "Engines",
    "weights": "New weights",
    "inference": "Inference jobs",
    "policies": "Policy servers",
    PEERS: "Peers",
    BENCHMARK: "The benchmark `quick`",
}


def command(part: str, folder: Path) -> list[str]:
    if part == BENCHMARK:
        asked = ["assay", "benchmark", "quick", "--output", str(folder / "quick")]
        return [sys.executable, "-m", "workers.up", "--run", "--", *asked]
    more = ["--output", str(folder / "peers")] if part == PEERS else []
    return [sys.executable, "-m", f"bench.{part}", *more]


def run(part: str, folder: Path) -> page.Part:
    """What it prints is shown and kept."""
    lines, collected = [], folder / f"{part}.jsonl"
    path = os.pathsep.join(filter(None, (str(ROOT / "client" / "src"), os.environ.get("PYTHONPATH", ""))))
    environment = os.environ | {COLLECTED: str(collected), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    started = time.monotonic()
    with (
        (folder / f"{part}.log").open("w") as log,
        subprocess.Popen(
            command(part, folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            log.write(line)
    if collected.exists():
        lines = [json.loads(line) for line in collected.read_text().splitlines()]
    took_s = time.monotonic() - started
    return page.Part(part, PARTS[part], process.returncode, took_s, [page.Line(**each) for each in lines])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Every figure beside its target.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these: {', '.join(PARTS)}")
    parser.add_argument("--output", type=Path, help="folder of what is printed (bench_results_<time>)")
    parser.add_argument("--write", action="store_true", help="write the tables of docs/performance.md anew")
    arguments = parser.parse_args()
    if unknown := [part for part in arguments.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    folder: Path = arguments.output or Path(time.strftime("bench_results_%Y%m%d_%H%M%S"))
    folder.mkdir(parents=True, exist_ok=True)
    done = []
    for part in arguments.parts or PARTS:
        print(f"\n== {PARTS[part]}: {part}", flush=True)
        done.append(run(part, folder))
    print()
    for line in page.summary(done):
        print(line)
    if arguments.write:
        page.write(ROOT / "docs" / "performance.md", done, folder)
    return max(part.code for part in done)


if __name__ == "__main__":
    sys.exit(main())
