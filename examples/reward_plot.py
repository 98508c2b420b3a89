"""Plot the mean rewards of the runs of `async_grpo.py` in a folder, by steps and by seconds.

Run: python examples/reward_plot.py grpo-output   (writes rewards.svg to the folder; needs only the standard library)
"""

import json
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, MARGIN = 460, 300, 46
COLOURS = {0: "#c0392b"}
OTHERS = "#2471a3"
#: Number of steps that are averaged to a point.
SMOOTHED = 10

Row = dict[str, Any]


def points(rows: list[Row], by: str) -> list[tuple[float, float]]:
    parts = [rows[at : at + SMOOTHED] for at in range(0, len(rows), SMOOTHED)]
    return [(part[-1][by], sum(row["reward"] for row in part) / len(part)) for part in parts]


def panel(runs: dict[str, list[Row]], by: str, left: float) -> str:
    most = max(rows[-1][by] for rows in runs.values())
    drawn = [f'<g transform="translate({left},0)" font-size="11">']
    for mark in (0.0, 0.25, 0.5, 0.75, 1.0):
        height = HEIGHT - MARGIN - mark * (HEIGHT - 2 * MARGIN)
        drawn.append(f'<path d="M{MARGIN} {height:.1f}H{WIDTH - 12}" stroke="#ddd"/>')
        drawn.append(f'<text x="{MARGIN - 6}" y="{height + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for share in (0.0, 0.5, 1.0):
        x = MARGIN + share * (WIDTH - MARGIN - 12)
        drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">{share * most:.0f}</text>')
    drawn.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{by}</text>')
    for name, rows in runs.items():
        line = " ".join(
            f"{MARGIN + x / most * (WIDTH - MARGIN - 12):.1f},{HEIGHT - MARGIN - y * (HEIGHT - 2 * MARGIN):.1f}"
            for x, y in points(rows, by)
        )
        colour = COLOURS.get(_staleness(name), OTHERS)
        drawn.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return "\n".join([*drawn, "</g>"])


def _staleness(name: str) -> int:
    return int(name.partition("staleness")[2])


def draw(runs: dict[str, list[Row]]) -> str:
    kinds = sorted({_staleness(name) for name in runs})
    legend = "".join(
        f'<text x="{MARGIN + 190 * at}" y="22" fill="{COLOURS.get(kind, OTHERS)}">'
        f"{'synchronous' if kind == 0 else f'asynchronous, staleness {kind}'}</text>"
        for at, kind in enumerate(kinds)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="white"/>{legend}\n'
        f"{panel(runs, 'step', 0)}\n{panel(runs, 'seconds', WIDTH)}\n</svg>\n"
    )


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "grpo-output")
    files = sorted(folder.glob("seed*-staleness*.jsonl"))
    if not files:
        print(f"{folder} has no runs: run examples/async_grpo.py with --output {folder} first", file=sys.stderr)
        return 1
    runs = {file.stem: [json.loads(line) for line in file.read_text().splitlines()] for file in files}
    (folder / "rewards.svg").write_text(draw(runs))
    print(f"{folder / 'rewards.svg'}: {len(runs)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
