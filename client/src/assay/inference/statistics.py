"""Formats the statistics that `assay infer` prints at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.inference.rows import rank_of

_RULE = "=" * 60


def blocks(statistics: Mapping[str, Any], saved_to: str, by_rank: Mapping[int, str]) -> str:
    """Format a block for each worker and a block for the total; `by_rank` has the workers' separate output files."""
    workers = statistics["workers"]
    ranks = [rank_of(str(each["worker"])) for each in workers]
    texts = []
    for each, rank in zip(workers, ranks):
        # Workers on different hosts may have the same rank.
        name = f"Worker {rank}" if ranks.count(rank) == 1 else f"Worker {rank} ({each['worker']})"
        path = saved_to if rank is None else by_rank.get(rank, saved_to)
        texts.append(_block(name, each, path))
    total = statistics["total"]
    texts.append(_block("TOTAL", total, saved_to) + _more(total))
    return "\n\n".join(texts)


def _block(name: str, share: Mapping[str, Any], saved_to: str) -> str:
    rate, seconds = share["success_rate"], share["average_inference_time"]
    return "\n".join(
        [
            f"{name} INFERENCE STATISTICS",
            _RULE,
            f"Total contexts processed: {share['contexts']}",
            f"Successful inferences: {share['successes']}",
            f"Errors: {share['errors']}",
            f"Success rate: {'n/a' if rate is None else f'{100 * rate:.1f}%'}",
            f"Average inference time: {'n/a' if seconds is None else f'{seconds:.2f}s'}",
            f"Results saved to: {saved_to}",
        ]
    )


def _more(total: Mapping[str, Any]) -> str:
    lines = []
    if total.get("tokens_per_s") is not None:
        lines.append(f"Tokens per second: {total['tokens_per_s']:.1f}")
    if total.get("cached"):
        lines.append(f"From the cache: {total['cached']}")
    if total.get("close_calls"):
        lines.append(f"Rows with an answer that may depend on the batch: {total['close_calls']}")
    if total.get("reasons"):
        lines.append("Errors by type: " + ", ".join(f"{name} {count}" for name, count in total["reasons"].items()))
    return "".join(f"\n{line}" for line in lines)
