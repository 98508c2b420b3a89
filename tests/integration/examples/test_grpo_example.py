"""Mathematics of the training example, on samples of the real engine."""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.inference.engine import Generated, GenerateRequest, ModelRef, Sampling
from tests.conftest import ROOT
from workers.engines.engine import EngineOptions, TransformersEngine

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True, scope="module")
def _examples() -> Iterator[None]:
    """Make the examples importable: they are programs that import each other from their folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples"))
        yield
    for name in ("addition", "grpo", "reward_plot"):
        sys.modules.pop(name, None)


@pytest.fixture
def network() -> Any:
    from addition import network

    torch.manual_seed(3)
    return network().eval()


def drawn(network: Any, folder: Path, prompts: list[str]) -> list[Generated]:
    from addition import ANSWER_TOKENS, write

    write(network, folder)
    sampling = Sampling(max_new_tokens=ANSWER_TOKENS, temperature=1.0, seed=1)
    engine = TransformersEngine(EngineOptions({}, on_cpu=True))
    asked = [GenerateRequest(prompt, sampling, logprobs=True) for prompt in prompts]
    answers = [each for each in engine.generate(ModelRef(str(folder)), asked) if isinstance(each, Generated)]
    assert len(answers) == len(prompts)
    return answers


def sample_of(answer: Generated, advantage: float) -> Any:
    from grpo import Sample

    return Sample(list(answer.prompt_ids), list(answer.token_ids), list(answer.logprobs or ()), advantage)


def test_advantages_are_standardized_within_the_group() -> None:
    from grpo import advantages

    assert advantages([1.0, 0.0, 0.0, 1.0]) == pytest.approx([1, -1, -1, 1], abs=1e-4)
    assert advantages([0.5, 0.5, 0.5]) == [0.0, 0.0, 0.0]


def test_the_tokenizer_produces_the_ids_of_the_training_data(network: Any, tmp_path: Path) -> None:
    from addition import IDS

    (answer,) = drawn(network, tmp_path, ["17+5="])
    assert answer.prompt_ids == tuple(IDS[letter] for letter in "17+5=")


def test_samples_of_the_current_weights_have_importance_weight_one(network: Any, tmp_path: Path) -> None:
    from grpo import loss_of

    answers = drawn(network, tmp_path, ["1+2=", "17+5=", "3+19=", "0+0="])
    _, metrics = loss_of(network, [sample_of(answer, 1.0) for answer in answers])
    assert metrics["weight"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["clipped"] == 0


def test_stale_samples_are_weighted_by_the_ratio_of_probabilities(network: Any, tmp_path: Path) -> None:
    from grpo import loss_of

    (answer,) = drawn(network, tmp_path, ["17+5="])
    with torch.no_grad():
        for each in network.parameters():
            each.mul_(1.02)
        tokens = torch.tensor([[*answer.prompt_ids, *answer.token_ids]])
        logprobs = torch.log_softmax(network(input_ids=tokens).logits, -1)
    now = [float(logprobs[0, len(answer.prompt_ids) - 1 + at, token]) for at, token in enumerate(answer.token_ids)]
    weights = [math.exp(new - old) for new, old in zip(now, answer.logprobs or (), strict=True)]
    _, metrics = loss_of(network, [sample_of(answer, 1.0)])
    assert metrics["weight"] == pytest.approx(sum(weights) / len(weights), rel=1e-3)
    assert metrics["weight"] != pytest.approx(1.0, abs=1e-4)


def test_training_raises_the_probability_of_good_answers_and_lowers_that_of_bad_answers(
    network: Any, tmp_path: Path
) -> None:
    from grpo import loss_of

    good, bad = drawn(network, tmp_path, ["17+5=", "3+19="])
    samples = [sample_of(good, 1.0), sample_of(bad, -1.0)]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for _ in range(3):
        loss, _ = loss_of(network, samples)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for sample, way in zip(samples, (1, -1), strict=True):
        _, metrics = loss_of(network, [sample])
        assert (metrics["weight"] - 1) * way > 0


def test_runs_are_drawn_into_a_single_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import reward_plot

    for staleness in (0, 2):
        rows = [{"step": at, "seconds": at / 2, "reward": at / 40} for at in range(40)]
        file = tmp_path / f"seed1-staleness{staleness}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["reward_plot.py", str(tmp_path)])
    assert reward_plot.main() == 0
    drawn = (tmp_path / "rewards.svg").read_text()
    assert drawn.count("<polyline") == 4
    assert "asynchronous, staleness 2" in drawn
