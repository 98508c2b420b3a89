"""New weights while a model generates: handling of answers under way, and the version recorded for each token."""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from transformers import AutoModelForCausalLM

from tasks.errors import AssayError, CannotFollow, GenerationTimeout, StorageUnavailable, WeightsRefused
from tasks.inference.engine import Generated, GenerateRequest, Interrupt, ModelRef, Sampling, Span
from tests.support import tiny_models
from workers.engines.engine import EngineOptions, TransformersEngine
from workers.engines.running_batch import RunningBatch

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ("hello", "another prompt", "third", "and a fourth one")
SAMPLED = Sampling(max_new_tokens=24, temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("versions")
    return [tiny_models.write(folder / f"v{seed}", seed=seed) for seed in range(3)]


@pytest.fixture
def engine() -> TransformersEngine:
    return TransformersEngine(EngineOptions({}, on_cpu=True))


class AfterTokens:
    """Renewal that loads the next folder's weights each time the batch has checked it `every` times."""

    def __init__(
        self, engine: TransformersEngine, model: ModelRef, folders: Sequence[Path], every: int, interrupt: Interrupt
    ) -> None:
        self.interrupt: Interrupt = interrupt
        self._engine, self._model = engine, model
        self._folders = list(enumerate(folders, 1))
        self._looks = itertools.count()
        self._every = every
        self._due = False

    def is_due(self) -> bool:
        self._due = self._due or (bool(self._folders) and (next(self._looks) + 1) % self._every == 0)
        return self._due

    def renew(self) -> None:
        self._due = False
        number, folder = self._folders.pop(0)
        self._engine.swap(self._model, self._engine.read(str(folder)), f"v{number}")


def answers(found: Sequence[Generated | AssayError]) -> list[Generated]:
    good = [each for each in found if isinstance(each, Generated)]
    assert len(good) == len(found)
    return good


def asked(sampling: Sampling = SAMPLED) -> list[GenerateRequest]:
    return [GenerateRequest(text, sampling, sample, logprobs=True) for text in TEXTS for sample in range(2)]


def logprobs_of(folder: Path, answer: Generated) -> torch.Tensor:
    """Return the log-probability of each vocabulary token at each place of the answer, by transformers' own forward."""
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = network(torch.tensor([[*answer.prompt_ids, *answer.token_ids]])).logits[0]
    return torch.log_softmax(logits[len(answer.prompt_ids) - 1 : -1], -1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_token_was_generated_by_the_version_that_its_span_names(
    engine: TransformersEngine, folders: list[Path], temperature: float
) -> None:
    """The cached keys and values are recomputed with the version too, so a trainer's forward gives the same figures."""
    model = ModelRef(str(folders[0]), copy="rollout")
    base = engine.version(model)
    renewal = AfterTokens(engine, model, folders[1:], 9, "continue")
    sampling = Sampling(max_new_tokens=24, temperature=temperature, seed=5)
    found = answers(engine.generate(model, asked(sampling), renewal=renewal))
    by_name = {base: folders[0], "v1": folders[1], "v2": folders[2]}
    assert any(len(answer.spans) == 3 for answer in found)
    for answer in found:
        assert [span.version for span in answer.spans] == [base, "v1", "v2"][: len(answer.spans)]
        assert sum(span.tokens for span in answer.spans) == len(answer.token_ids) == len(answer.logprobs or ())
        assert answer.version == base
        at = 0
        for span in answer.spans:
            wanted = logprobs_of(by_name[span.version], answer)
            for place in range(at, at + span.tokens):
                assert answer.logprobs is not None
                expected = float(wanted[place, answer.token_ids[place]])
                assert answer.logprobs[place] == pytest.approx(expected, abs=2e-4)
                if temperature == 0:
                    assert expected >= float(wanted[place].max()) - 2e-4
            at += span.tokens


def test_restarted_answers_equal_those_of_the_new_version(engine: TransformersEngine, folders: list[Path]) -> None:
    model, other = ModelRef(str(folders[0]), copy="rollout"), ModelRef(str(folders[1]))
    wanted = answers(engine.generate(other, asked()))
    renewal = AfterTokens(engine, model, folders[1:2], 12, "restart")
    found = answers(engine.generate(model, asked(), renewal=renewal))
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in wanted]
    assert all(answer.spans == (Span("v1", len(answer.token_ids)),) for answer in found)


def test_with_finish_running_answers_end_with_the_old_weights(folders: list[Path]) -> None:
    engine = TransformersEngine(EngineOptions({}, on_cpu=True, rows=4))
    model = ModelRef(str(folders[0]), copy="rollout")
    base = engine.version(model)
    requests = asked() + asked()
    requests = [
        GenerateRequest(each.prompt, Sampling(max_new_tokens=3 + 2 * at, temperature=1.0, seed=1))
        for at, each in enumerate(requests)
    ]
    renewal = AfterTokens(engine, model, folders[1:], 12, "finish")
    found = answers(engine.generate(model, requests, renewal=renewal))
    assert all(len(answer.spans) == 1 for answer in found)
    assert {answer.version for answer in found} == {base, "v1", "v2"}


def test_other_users_of_the_model_keep_its_own_weights(engine: TransformersEngine, folders: list[Path]) -> None:
    plain, copied = ModelRef(str(folders[0])), ModelRef(str(folders[0]), copy="rollout")
    before = answers(engine.generate(plain, asked()))
    engine.swap(copied, engine.read(str(folders[1])), "v1")
    assert answers(engine.generate(plain, asked())) == before
    assert engine.version(copied) == "v1"
    engine.drop(copied)
    assert engine.version(copied) == engine.version(plain), "a dropped copy is loaded again with the original weights"


def test_a_failed_renewal_ends_the_run_and_leaves_the_engine_usable(
    engine: TransformersEngine, folders: list[Path]
) -> None:
    model = ModelRef(str(folders[0]), copy="rollout")
    wanted = engine.generate(model, asked())

    class Failing(AfterTokens):
        def renew(self) -> None:
            raise CannotFollow

    with pytest.raises(CannotFollow):
        engine.generate(model, asked(), renewal=Failing(engine, model, folders[1:], 4, "continue"))
    assert engine.generate(model, asked()) == wanted


def test_an_answer_past_its_timeout_fails_and_other_answers_succeed(
    engine: TransformersEngine, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelRef(str(folders[0]))
    step: Callable[[RunningBatch], None] = RunningBatch._step

    def slow_step(batch: RunningBatch) -> None:
        step(batch)
        time.sleep(0.01)

    monkeypatch.setattr(RunningBatch, "_step", slow_step)
    late, fine = engine.generate(
        model,
        [GenerateRequest("one", Sampling(max_new_tokens=400), timeout_s=0.1), GenerateRequest("two", SAMPLED)],
    )
    assert isinstance(late, GenerationTimeout)
    assert late.name == "generation_timeout"
    assert isinstance(fine, Generated)


# --- sources of weights ---


@pytest.fixture
def bucket() -> Iterator[Any]:
    """Yield a storage that is not a local folder."""
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.rm("/", recursive=True)


def test_weights_are_read_from_any_storage_and_checked_by_checksum(
    engine: TransformersEngine, folders: list[Path], bucket: Any
) -> None:
    model = ModelRef(str(folders[0]), copy="rollout")
    body = (folders[1] / "model.safetensors").read_bytes()
    bucket.pipe("/weights/7/model.safetensors", body)
    checksum = hashlib.sha256(body).hexdigest()
    of_folder = hashlib.sha256(f"{checksum}  model.safetensors\n".encode()).hexdigest()
    for uri, right in (
        ("memory://weights/7/model.safetensors", checksum),
        ("memory://weights/7", of_folder),
        ((folders[1] / "model.safetensors").as_uri(), checksum),
        (str(folders[1]), of_folder),
    ):
        assert engine.read(uri, right).bytes == len(body)
        with pytest.raises(WeightsRefused, match="the checksum of"):
            engine.read(uri, checksum[::-1])
    engine.swap(model, engine.read("memory://weights/7", of_folder), "v1")
    wanted = [answer.token_ids for answer in answers(engine.generate(ModelRef(str(folders[1])), asked()))]
    assert [answer.token_ids for answer in answers(engine.generate(model, asked()))] == wanted


def test_weights_in_memory_do_not_change_with_their_file(
    engine: TransformersEngine, folders: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes((folders[1] / "model.safetensors").read_bytes())
    model = ModelRef(str(folders[0]), copy="rollout")
    weights = engine.read(str(file))
    with file.open("r+b") as opened:
        opened.truncate(100)
    engine.swap(model, weights, "v1")
    wanted = [answer.token_ids for answer in answers(engine.generate(ModelRef(str(folders[1])), asked()))]
    assert [answer.token_ids for answer in answers(engine.generate(model, asked()))] == wanted


def test_an_unavailable_storage_is_retryable_and_missing_weights_are_not(engine: TransformersEngine) -> None:
    with pytest.raises(StorageUnavailable, match="nosuch"):
        engine.read("nosuch://bucket/weights")
    with pytest.raises(WeightsRefused, match="no such weights"):
        engine.read("memory://not/there")
