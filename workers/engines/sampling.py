"""Choice of the next token of each row. It depends only on the row's own logits, sampling settings and random
numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.inference.engine import Sampling
from workers.engines.rows import Row

#: Numbers of likeliest tokens to try for `top_p`. The whole vocabulary is sorted only for rows whose probability mass
#: extends beyond them.
FIRST_LOOKS = (128, 2048)


def choose_tokens(logits: Tensor, rows: Sequence[Row]) -> list[int]:
    """Return the next token of each row. `logits`: float32, a line per row."""
    tokens = logits.argmax(-1)
    by_settings: dict[tuple[float, float, int], list[int]] = {}
    for at, row in enumerate(rows):
        sampling = row.request.sampling
        if sampling.temperature > 0:
            by_settings.setdefault((sampling.temperature, sampling.top_p, sampling.top_k), []).append(at)
    for places in by_settings.values():
        chances = torch.tensor([rows[at].draw() for at in places], dtype=torch.float64, device=logits.device)
        tokens[places] = _sample(logits[places], rows[places[0]].request.sampling, chances)
    return list(map(int, tokens.tolist()))


def logprobs_of(logits: Tensor, rows: Sequence[Row], tokens: Sequence[int]) -> list[float | None]:
    """Return each token's log-probability under the model's own distribution; None for rows that did not request it."""
    places = [at for at, row in enumerate(rows) if row.request.logprobs]
    found: list[float | None] = [None] * len(rows)
    if places:
        chosen = torch.tensor([tokens[at] for at in places], device=logits.device)
        values = torch.log_softmax(logits[places], -1).gather(1, chosen[:, None])[:, 0]
        for at, value in zip(places, values.tolist(), strict=True):
            found[at] = value
    return found


def _sample(logits: Tensor, sampling: Sampling, chances: Tensor) -> Tensor:
    """Sample rows of equal settings: the token at which the cumulative probability exceeds the row's random number."""
    shares = torch.softmax(logits.double() / sampling.temperature, -1)
    size = shares.shape[1]
    if not sampling.top_k and sampling.top_p == 1:
        return _pick(shares, chances)
    limit = min(sampling.top_k or size, size)
    looks = [limit] if sampling.top_k else [look for look in (*FIRST_LOOKS, size) if look <= size]
    tokens = torch.empty(len(shares), dtype=torch.long, device=shares.device)
    left = torch.arange(len(shares), device=shares.device)
    for look in looks:  # decided per row, so that other rows cannot change its answer
        kept, candidates = shares[left].topk(look)
        if sampling.top_k:
            kept = kept / kept.sum(-1, keepdim=True)  # top_p is a share of the tokens that top_k keeps
        before = kept.cumsum(-1) - kept
        kept = torch.where(before < sampling.top_p, kept, 0)
        enough = (before[:, -1] + kept[:, -1] >= sampling.top_p) | (look == looks[-1])
        tokens[left[enough]] = candidates[enough].gather(1, _pick(kept[enough], chances[left[enough]])[:, None])[:, 0]
        left = left[~enough]
        if not len(left):
            break
    return tokens


def _pick(shares: Tensor, chances: Tensor) -> Tensor:
    summed = shares.cumsum(-1)
    marks = (chances * summed[:, -1])[:, None]
    found = torch.searchsorted(summed, marks, right=True)[:, 0]
    return found.clamp(max=shares.shape[1] - 1)


def note_close_calls(logits: Tensor, rows: Sequence[Row], dtype: torch.dtype) -> None:
    """Count, for greedy rows, the tokens whose two best logits differ by no more than the precision's resolution."""
    first, second = logits.topk(2, dim=-1).values.unbind(-1)
    close = (first - second <= 2 * torch.finfo(dtype).eps * first.abs()).tolist()
    for row, is_close in zip(rows, close, strict=True):
        row.close_calls += is_close and row.request.sampling.temperature == 0
