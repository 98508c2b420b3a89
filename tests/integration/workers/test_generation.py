"""Generation: the answer of a row does not depend on the other rows of its batch."""

import gc
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaForCausalLM, MistralConfig, Qwen2Config

from tasks.errors import AssayError, DeviceOutOfMemory, InvalidRequest, NoLongerWanted, OutputNotANumber, PromptTooLong
from tasks.inference.engine import Generated, GenerateRequest, ModelRef, Sampling
from tests.support import tiny_models
from workers.engines.engine import EngineOptions, TransformersEngine

pytestmark = pytest.mark.usefixtures("one_thread")

LETTERS = "abcdefgh ijklmnop qrstuvw xyz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder: Path) -> ModelRef:
    return ModelRef(str(folder))


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    return TransformersEngine(EngineOptions({}, on_cpu=True))


def requests(number: int, variant: int = 0, **sampling: Any) -> list[GenerateRequest]:
    chance = random.Random(variant)
    return [
        GenerateRequest(
            "".join(chance.choice(LETTERS) for _ in range(chance.randint(1, 120))),
            Sampling(**{"max_new_tokens": chance.randint(1, 40)} | sampling),
            logprobs=True,
        )
        for _ in range(number)
    ]


def generated(answers: Sequence[Generated | AssayError]) -> list[Generated]:
    assert all(isinstance(answer, Generated) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, Generated)]


def test_greedy_answers_equal_those_of_transformers(engine: TransformersEngine, model: ModelRef, folder: Path) -> None:
    asked = requests(20)
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = tiny_models.tokenizer()
    for request, answer in zip(asked, generated(engine.generate(model, asked)), strict=True):
        prompt = torch.tensor([tokenizer(str(request.prompt))["input_ids"]])
        wanted = network.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
            max_new_tokens=request.sampling.max_new_tokens,
        )[0, prompt.shape[1] :].tolist()  # fmt: skip
        assert list(answer.token_ids) == wanted
        assert answer.finish == ("stop" if wanted[-1] == 1 else "length")


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_answer_does_not_depend_on_the_other_rows_of_its_batch(model: ModelRef, temperature: float) -> None:
    """Token ids and log-probabilities are equal bit by bit when order, size and contents of the batch change."""
    asked = requests(40, temperature=temperature, seed=5, top_p=0.95)
    wanted = [
        generated(TransformersEngine(EngineOptions({}, on_cpu=True)).generate(model, [request]))[0]
        for request in asked[:3]
    ]
    for rows in (2, 8, 32):
        engine = TransformersEngine(EngineOptions({}, on_cpu=True, rows=rows))
        for seed in range(2):
            order = random.Random(seed).sample(asked, len(asked))
            found = dict(zip(map(id, order), generated(engine.generate(model, order)), strict=True))
            together = [found[id(request)] for request in asked]
            assert together[: len(wanted)] == wanted
            wanted = together
    assert len({answer.text for answer in wanted}) > 20, "equal answers would prove nothing"


def test_packed_weights_give_the_same_answers_bit_by_bit(engine: TransformersEngine, model: ModelRef) -> None:
    """A model copy, whose weights may be swapped, keeps them unpacked; the resident model packs them for oneDNN."""
    asked = requests(20)
    packed, plain = (generated(engine.generate(each, asked)) for each in (model, replace(model, copy="mine")))
    assert [(each.token_ids, each.logprobs) for each in packed] == [(each.token_ids, each.logprobs) for each in plain]


def test_samples_of_equal_prompts_equal_their_answers_alone(engine: TransformersEngine, model: ModelRef) -> None:
    """Three prompts of the same length, with four samples each."""
    samples = [
        GenerateRequest(prompt, Sampling(max_new_tokens=20, temperature=1.0, seed=7), sample)
        for prompt in ("the first prompt", "a second prompt!", "third and last..")
        for sample in range(4)
    ]
    together = generated(engine.generate(model, [*samples, *requests(5)]))[:12]
    assert together == [generated(engine.generate(model, [sample]))[0] for sample in samples]
    assert len({answer.token_ids for answer in together}) == 12, "each sample has its own random numbers"


def test_different_seeds_give_different_answers_and_without_a_seed_answers_are_random(
    engine: TransformersEngine, model: ModelRef
) -> None:
    (one,) = requests(1, temperature=1.0, max_new_tokens=30)
    texts = {
        generated(engine.generate(model, [replace(one, sampling=replace(one.sampling, seed=seed))]))[0].token_ids
        for seed in (1, 2, None, None)
    }
    assert len(texts) == 4


def test_sampling_follows_the_models_distribution(engine: TransformersEngine, model: ModelRef, folder: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    prompt = torch.tensor([tiny_models.tokenizer()("a")["input_ids"]])
    with torch.no_grad():
        shares = torch.softmax(network(prompt).logits[0, -1] / 1.5, -1)
    kept = [int(token) for token in shares.topk(5).indices]

    def drawn(number: int, **sampling: Any) -> list[int]:
        asked = [
            GenerateRequest("a", Sampling(max_new_tokens=1, temperature=1.5, seed=11, **sampling), sample=n)
            for n in range(number)
        ]
        return [answer.token_ids[0] for answer in generated(engine.generate(model, asked))]

    tokens = drawn(2000)
    for token in kept:
        share = float(shares[token])
        assert abs(tokens.count(token) / 2000 - share) < 5 * (share * (1 - share) / 2000) ** 0.5
    assert set(drawn(300, top_k=5)) == set(kept)
    inside = float(shares[kept[:4]].sum()) - 1e-6  # the fourth token completes this mass
    assert set(drawn(300, top_p=inside)) == set(kept[:4])


def test_logprobs_equal_those_of_the_models_own_forward(
    engine: TransformersEngine, model: ModelRef, folder: Path
) -> None:
    asked = requests(6, temperature=1.2, top_k=10, seed=2)
    network = AutoModelForCausalLM.from_pretrained(folder).eval()
    for request, answer in zip(asked, generated(engine.generate(model, asked)), strict=True):
        prompt = list(tiny_models.tokenizer()(str(request.prompt))["input_ids"])
        with torch.no_grad():
            logits = network(torch.tensor([[*prompt, *answer.token_ids]])).logits[0, len(prompt) - 1 : -1]
        wanted = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        assert answer.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)
        assert answer.tokens_in == len(prompt)


def test_an_answer_ends_before_its_stop_string(engine: TransformersEngine, model: ModelRef) -> None:
    asked = requests(30, variant=9, max_new_tokens=40)
    tried = 0
    for request, answer in zip(asked, generated(engine.generate(model, asked)), strict=True):
        pairs = [answer.text[at : at + 2] for at in range(1, len(answer.text) - 1)]
        if stop := next((pair for pair in pairs if pair.isascii()), ""):
            tried += 1
            sampling = replace(request.sampling, stop=("not there", stop))
            (cut,) = generated(engine.generate(model, [replace(request, sampling=sampling)]))
            assert (cut.text, cut.finish) == (answer.text[: answer.text.index(stop)], "stop")
            assert cut.token_ids == answer.token_ids[: len(cut.token_ids)]
            assert len(cut.token_ids) < len(answer.token_ids) or cut.token_ids[-1] == answer.token_ids[-1]
    assert tried > 10


def test_chat_messages_go_through_the_models_template(engine: TransformersEngine, model: ModelRef) -> None:
    said = [{"role": "user", "content": "hello"}]
    chat, text = generated(engine.generate(model, [GenerateRequest(said), GenerateRequest("<user>hello<assistant>")]))
    assert chat == text
    assert chat.tokens_in == 7


def test_an_invalid_request_does_not_affect_other_requests(
    engine: TransformersEngine, model: ModelRef, tmp_path: Path
) -> None:
    good = requests(3)
    asked = [good[0], GenerateRequest("x" * 600), good[1], GenerateRequest(""), GenerateRequest([]), good[2]]
    answers = engine.generate(model, asked)
    kinds = [type(answer) for answer in answers]
    assert kinds == [Generated, PromptTooLong, Generated, InvalidRequest, InvalidRequest, Generated]
    told: dict[int, Generated | AssayError] = {}
    engine.generate(model, asked, on_done=told.__setitem__)
    assert [type(told[index]) for index in range(6)] == kinds
    plain = ModelRef(str(tiny_models.write(tmp_path / "plain", chat=False)))
    (refused,) = engine.generate(plain, [GenerateRequest([{"role": "user", "content": "hello"}])])
    assert "chat template" in str(refused)


def test_an_answer_ends_at_the_end_of_the_models_context(engine: TransformersEngine, model: ModelRef) -> None:
    (answer,) = generated(engine.generate(model, [GenerateRequest("x" * 500, Sampling(max_new_tokens=100))]))
    assert answer.tokens_in + answer.tokens_out <= 512
    assert answer.finish == "stop" or answer.tokens_out == 12


def test_requests_join_the_running_batch(model: ModelRef) -> None:
    """The engine asks for further requests while earlier requests run, and never for more than it has free rows."""
    engine = TransformersEngine(EngineOptions({}, on_cpu=True, rows=4))
    later, rooms = requests(10, variant=4), []
    done: dict[int, Generated | AssayError] = {}

    def more(room: int) -> Sequence[GenerateRequest]:
        rooms.append((room, len(done)))
        given, later[:] = later[:room], later[room:]
        return given

    first = requests(4, variant=8)
    assert engine.generate(model, first, done.__setitem__, more) == [], (
        "answers passed to the callback are not returned again"
    )
    assert sorted(done) == list(range(14))
    answers = generated([done[index] for index in range(14)])
    assert any(0 < over < 14 for _, over in rooms)
    assert all(0 <= room <= 4 for room, _ in rooms)
    assert answers == generated(engine.generate(model, first + requests(10, variant=4)))


def test_a_long_run_keeps_no_delivered_answers_in_memory(model: ModelRef) -> None:
    engine = TransformersEngine(EngineOptions({}, on_cpu=True, rows=8))
    asked = requests(200, max_new_tokens=2)
    kept: list[int] = []

    def look(index: int, _: Generated | AssayError) -> None:
        if index == 199:
            kept.append(sum(type(each) is Generated for each in gc.get_objects()))

    before = sum(type(each) is Generated for each in gc.get_objects())
    engine.generate(model, asked[:8], look, lambda room: [asked.pop() for _ in range(min(room, len(asked) - 8))])
    assert kept[0] - before <= 8


def test_a_cancelled_run_stops(engine: TransformersEngine, model: ModelRef) -> None:
    done: dict[int, Generated | AssayError] = {}
    asked = requests(10, max_new_tokens=400)
    asked[0] = replace(asked[0], sampling=Sampling(max_new_tokens=1))
    engine.generate(model, asked, done.__setitem__, is_cancelled=lambda: bool(done))
    assert isinstance(done[0], Generated)
    assert sum(isinstance(answer, NoLongerWanted) for answer in done.values()) >= 8
    assert generated(engine.generate(model, asked[:1])), "the engine answers the next request"


def test_the_engine_is_usable_after_a_callback_raises(engine: TransformersEngine, model: ModelRef) -> None:
    def fall_over(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.generate(model, requests(10), fall_over)
    assert len(generated(engine.generate(model, requests(3)))) == 3


# --- memory ---


@pytest.fixture
def fresh(model: ModelRef) -> TransformersEngine:
    """Make an engine for a single test, and load its model."""
    engine = TransformersEngine(EngineOptions({}, on_cpu=True))
    engine.generate(model, requests(1))
    return engine


@pytest.fixture
def limit_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[torch.Tensor], bool]], list[int]]:
    """Let the model's forward run out of memory when its input is too large. Returns the number of rows of each
    forward, negative for a forward that failed."""
    forward = LlamaForCausalLM.forward

    def limit(too_large: Callable[[torch.Tensor], bool]) -> list[int]:
        rows: list[int] = []

        def limited(self: Any, input_ids: torch.Tensor, **others: Any) -> Any:
            rows.append(input_ids.shape[0])
            if too_large(input_ids):
                rows[-1] *= -1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return forward(self, input_ids, **others)

        monkeypatch.setattr(LlamaForCausalLM, "forward", limited)
        return rows

    return limit


def test_out_of_memory_halves_the_batch_and_every_request_is_answered(
    engine: TransformersEngine,
    fresh: TransformersEngine,
    model: ModelRef,
    limit_memory: Callable[..., list[int]],
) -> None:
    """Memory runs out in the middle of the answers, which start again with the same random numbers."""
    asked = requests(40, variant=1, temperature=0.8, seed=1)
    wanted = engine.generate(model, asked)
    passed = itertools.count()
    rows = limit_memory(lambda tokens: tokens.shape[0] > 7 and next(passed) > 12)
    told: list[tuple[int, Generated | AssayError]] = []
    fresh.generate(model, asked, lambda *answer: told.append(answer))
    assert sorted(told, key=lambda each: each[0]) == list(enumerate(wanted)), (
        "every request is answered once, although many answers started again"
    )
    assert max(rows) > 14
    assert max(rows[-20:]) <= 7
    assert sum(number < 0 for number in rows) <= 3, "batches of 32, 16 and 8 rows do not fit"


def test_only_a_row_that_does_not_fit_alone_fails(
    engine: TransformersEngine,
    fresh: TransformersEngine,
    model: ModelRef,
    limit_memory: Callable[..., list[int]],
) -> None:
    asked = requests(20, variant=6, max_new_tokens=40)
    wanted = engine.generate(model, asked)
    rows = limit_memory(lambda tokens: tokens.shape[1] > 200)
    later = [GenerateRequest("x" * 300)]
    answers = fresh.generate(model, asked, more=lambda _: [later.pop()] if later else [])
    assert isinstance(answers[20], DeviceOutOfMemory)
    assert answers[:20] == wanted
    assert max(rows[-30:]) == 20, "the remaining rows share the full batch again"


def test_other_errors_of_the_model_are_not_handled_as_out_of_memory(
    fresh: TransformersEngine, model: ModelRef, limit_memory: Callable[..., list[int]]
) -> None:
    def fall_over(_: torch.Tensor) -> bool:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    limit_memory(fall_over)
    with pytest.raises(RuntimeError, match="shapes"):
        fresh.generate(model, requests(2))


def test_nan_output_fails_only_its_own_row(
    engine: TransformersEngine, fresh: TransformersEngine, model: ModelRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In practice a prompt that overflows half precision causes such output."""
    asked = [
        *requests(5),
        GenerateRequest("x" * 150, Sampling(max_new_tokens=20, temperature=1.0)),
        *requests(5, variant=1),
    ]
    forward = LlamaForCausalLM.forward

    def overflow(self: Any, input_ids: torch.Tensor, **others: Any) -> Any:
        found = forward(self, input_ids, **others)
        if input_ids.shape[1] == 1:
            found.logits[others["position_ids"][:, 0] > 155] = float("nan")
        return found

    wanted = engine.generate(model, asked)
    monkeypatch.setattr(LlamaForCausalLM, "forward", overflow)
    answers = fresh.generate(model, asked)
    assert isinstance(answers[5], OutputNotANumber)
    assert answers[:5] + answers[6:] == wanted[:5] + wanted[6:]


# --- architectures ---


def small(config: type[Any], **given: Any) -> Any:
    return config(**json.loads(tiny_models.llama().to_json_string()) | {"model_type": config.model_type} | given)


@pytest.mark.parametrize(
    "config",
    [
        small(MistralConfig, sliding_window=20),
        small(Qwen2Config, use_sliding_window=True, sliding_window=20, max_window_layers=1),
        small(Gemma3TextConfig, sliding_window=20, layer_types=["sliding_attention", "full_attention"], head_dim=16),
        tiny_models.llama(num_key_value_heads=4, tie_word_embeddings=True),
    ],
    ids=["mistral", "qwen2", "gemma3", "llama"],
)
def test_other_architectures_answer_like_transformers(config: Any, tmp_path: Path) -> None:
    """Some of the architectures have attention windows that are shorter than the prompts."""
    folder = tiny_models.write(tmp_path, config)
    test_greedy_answers_equal_those_of_transformers(
        TransformersEngine(EngineOptions({}, on_cpu=True)), ModelRef(str(folder)), folder
    )


def test_close_calls_count_tokens_that_a_different_batch_might_change(tmp_path: Path) -> None:
    folder = tiny_models.write(
        tmp_path / "model", tiny_models.llama(initializer_range=0.02)
    )  # gives every token nearly the same probability
    engine, model = TransformersEngine(EngineOptions({})), ModelRef(str(folder), copy="mine")
    greedy, drawn = Sampling(max_new_tokens=8), Sampling(8, 1.0, seed=1)
    asked = [GenerateRequest(f"{n} abc", sampling) for sampling in (greedy, drawn) for n in range(16)]

    def close_calls() -> list[int]:
        answers = engine.generate(model, asked)
        return [each.close_calls for each in answers if isinstance(each, Generated)]

    assert close_calls() == [0] * 32
    resident = engine._models.get(model, "generate")
    resident.model.network.to(torch.bfloat16)  # regardless of the type that suits this CPU
    resident.batch = None
    coarse = close_calls()
    assert sum(coarse[:16]) > 0
    assert coarse[16:] == [0] * 16, "a sampled token is never a close call"
