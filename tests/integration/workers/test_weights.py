"""Swap of a loaded model's weights is atomic: every weight is replaced, or none is."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.errors import WeightsRefused
from tasks.inference.engine import Generated, GenerateRequest, ModelRef, Sampling
from tests.support import tiny_models
from workers.engines.engine import EngineOptions, TransformersEngine
from workers.engines.model_cache import ModelInventory

pytestmark = pytest.mark.usefixtures("one_thread")

ASKED = [GenerateRequest(text, Sampling(max_new_tokens=12), logprobs=True) for text in ("hello", "another", "third")]
Weights = dict[str, torch.Tensor]


@pytest.fixture(params=[False, True], ids=["apart", "tied"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Write two models of the same architecture; input and output share their embedding in the `tied` case."""
    config = tiny_models.llama(tie_word_embeddings=request.param)
    return tiny_models.write(tmp_path / "old", config), tiny_models.write(tmp_path / "new", config, seed=1)


def told(engine: TransformersEngine, folder: Path) -> tuple[list[tuple[int, ...]], set[str]]:
    answers = [answer for answer in engine.generate(ModelRef(str(folder)), ASKED) if isinstance(answer, Generated)]
    assert len(answers) == len(ASKED)
    return [answer.token_ids for answer in answers], {answer.version for answer in answers}


def test_swapped_weights_answer_like_freshly_loaded_weights_and_have_a_name(folders: tuple[Path, Path]) -> None:
    old, new = folders
    announced: list[ModelInventory] = []
    engine = TransformersEngine(EngineOptions({}, on_cpu=True), announced.append)
    before, _ = told(engine, old)
    wanted, _ = told(TransformersEngine(EngineOptions({}, on_cpu=True)), new)
    assert before != wanted
    engine.swap(ModelRef(str(old)), engine.read(str(new)), "step-7")
    assert told(engine, old) == (wanted, {"step-7"})
    engine.swap(ModelRef(str(old)), engine.read(str(old / "model.safetensors")), "step-8")
    assert told(engine, old) == (before, {"step-8"})
    assert [each.loading for each in announced] == [str(old), "", "", ""], "no model was loaded again"
    assert [each.weights.get(str(old)) for each in announced[2:]] == ["step-7", "step-8"], (
        "the inventory announces the new version"
    )


def drop_one(weights: Weights) -> None:
    del weights["model.norm.weight"]


def add_one(weights: Weights) -> None:
    weights["model.layers.2.mlp.up_proj.weight"] = torch.zeros(2)


def reshape_one(weights: Weights) -> None:
    weights["model.norm.weight"] = torch.ones(65)


def spoil_one(weights: Weights) -> None:
    weights["model.layers.1.mlp.up_proj.weight"][3, 3] = float("nan")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (drop_one, r"model\.norm\.weight is missing"),
        (add_one, r"the model has no weight model\.layers\.2"),
        (reshape_one, r"model\.norm\.weight is \[65\], the model's is \[64\]"),
        (spoil_one, "NaN or infinite"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(
    folders: tuple[Path, Path], change: Callable[[Weights], None], reason: str
) -> None:
    old, new = folders
    weights = load_file(new / "model.safetensors")
    change(weights)
    save_file(weights, new / "model.safetensors")
    engine = TransformersEngine(EngineOptions({}, on_cpu=True))
    before = told(engine, old)
    with pytest.raises(WeightsRefused, match=reason):
        engine.swap(ModelRef(str(old)), engine.read(str(new)), "step-7")
    assert told(engine, old) == before


def test_broken_or_absent_files_change_nothing(folders: tuple[Path, Path]) -> None:
    old, new = folders
    engine = TransformersEngine(EngineOptions({}, on_cpu=True))
    before = told(engine, old)
    weights = new / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2000])
    with pytest.raises(WeightsRefused):
        engine.swap(ModelRef(str(old)), engine.read(str(new)), "step-7")
    weights.write_bytes(b"nothing")
    with pytest.raises(WeightsRefused, match="not a complete safetensors file"):
        engine.swap(ModelRef(str(old)), engine.read(str(new)), "step-7")
    with pytest.raises(WeightsRefused, match="no such weights"):
        engine.swap(ModelRef(str(old)), engine.read(str(new / "gone")), "step-7")
    assert told(engine, old) == before


def test_a_tied_weight_may_be_given_under_both_names_if_the_values_agree(tmp_path: Path) -> None:
    config = tiny_models.llama(tie_word_embeddings=True)
    old, new = tiny_models.write(tmp_path / "old", config), tiny_models.write(tmp_path / "new", config, seed=1)
    engine = TransformersEngine(EngineOptions({}, on_cpu=True))
    weights = load_file(new / "model.safetensors")
    assert "lm_head.weight" not in weights
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, new / "model.safetensors")
    engine.swap(ModelRef(str(old)), engine.read(str(new)), "step-7")
    weights["lm_head.weight"][0, 0] += 1
    save_file(weights, new / "model.safetensors")
    with pytest.raises(WeightsRefused, match="are tied in the model"):
        engine.swap(ModelRef(str(old)), engine.read(str(new)), "step-8")
    assert told(engine, old)[1] == {"step-7"}


def test_weights_may_come_in_several_files(tmp_path: Path) -> None:
    old, new = tiny_models.write(tmp_path / "old"), tiny_models.write(tmp_path / "new", seed=1)
    wanted, _ = told(TransformersEngine(EngineOptions({}, on_cpu=True)), new)
    weights = sorted(load_file(new / "model.safetensors").items())
    parts = tmp_path / "parts"
    parts.mkdir()
    save_file(dict(weights[:5]), parts / "one.safetensors")
    save_file(dict(weights[5:]), parts / "two.safetensors")
    engine = TransformersEngine(EngineOptions({}, on_cpu=True))
    engine.swap(ModelRef(str(old)), engine.read(str(parts)), "step-7")
    assert told(engine, old) == (wanted, {"step-7"})
