"""Accuracy of the scorers on labelled answers: `python -m bench.accuracy.scorers FOLDER [--show N]`.

FOLDER has the layout of GSM8K's release: `example_model_solutions.jsonl`, each line with `ground_truth` and, for each
model, a `solution` with `is_correct`. For each scorer the program prints its agreement with the labels, examples of
disagreement, and the time per item.
"""

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.scoring.combination import prepare_scorers, score_item
from tasks.scoring.isolation import isolation
from tasks.scoring.model import ScoreItem, ScoreSpec

SCORERS: dict[str, dict[str, Any]] = {
    "numeric_match": {"name": "numeric_match"},
    "numeric_match after 'A:'": {"name": "numeric_match", "options": {"after": "A:"}},
    "math_equal": {"name": "math_equal"},
    "math_equal after 'A:'": {"name": "math_equal", "options": {"after": "A:"}},
    "exact_match after 'A:'": {"name": "exact_match", "options": {"after": "A:"}},
    "contains": {"name": "contains", "options": {"whole_words": True}},
}


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    item: ScoreItem
    is_correct: bool


def labelled(folder: Path) -> Iterator[LabelledAnswer]:
    for line in (folder / "example_model_solutions.jsonl").read_text().split("\n")[:-1]:
        row = json.loads(line)
        reference = re.split(r"\nA: |#### ", row["ground_truth"])[-1].strip()
        for model, answer in row.items():
            if isinstance(answer, dict):
                item = ScoreItem(id=model, prompt=row["question"], response=answer["solution"], reference=reference)
                yield LabelledAnswer(item, answer["is_correct"])


def measure(name: str, scorer: dict[str, Any], samples: list[LabelledAnswer], show: int) -> None:
    spec = ScoreSpec.model_validate({"scorers": [scorer]})
    prepared = prepare_scorers(spec)
    counts: Counter[str] = Counter()
    disagreements = []
    score_item(spec, prepared, samples[0].item, isolation())  # warm up: imports at first use are not measured
    started = time.perf_counter()
    for sample in samples:
        result = score_item(spec, prepared, sample.item, isolation())
        said = result.error.type if result.error else "right" if result.score else "wrong"
        counts[f"{'right' if sample.is_correct else 'wrong'}, scored {said}"] += 1
        if said != ("right" if sample.is_correct else "wrong"):
            disagreements.append((said, sample))
    seconds = time.perf_counter() - started
    agreements = len(samples) - len(disagreements)
    print(f"\n{name}: agrees in {agreements} of {len(samples)}, {1e6 * seconds / len(samples):.0f} us an item")
    print("  " + "; ".join(f"{case}: {count}" for case, count in sorted(counts.items())))
    for said, sample in disagreements[:show]:
        label = "right" if sample.is_correct else "wrong"
        print(
            f"  labelled {label}, scored {said}: reference {sample.item.reference!r}, "
            f"response ends {str(sample.item.response)[-90:]!r}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy of the scorers on labelled answers.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--show", type=int, default=10, help="number of disagreements to print for each scorer")
    parser.add_argument("--only", default="", help="measure only scorers with this prefix in their name")
    arguments = parser.parse_args()
    samples = list(labelled(arguments.folder))
    print(f"{len(samples)} labelled responses, {sum(sample.is_correct for sample in samples)} of them correct")
    for name, scorer in SCORERS.items():
        if name.startswith(arguments.only):
            measure(name, scorer, samples, arguments.show)


if __name__ == "__main__":
    main()
