"""Model scorers: the scores of a batch equal the scores of its items alone."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification, LlamaForCausalLM

from tasks.errors import AssayError, DeviceOutOfMemory, InvalidRequest, ModelUnsupported, PromptTooLong
from tasks.inference.engine import (
    AnswerRequest,
    Embedding,
    Likelihood,
    ModelRef,
    RewardRequest,
    Scored,
)
from tests.support import tiny_models
from workers.engines.engine import EngineOptions, TransformersEngine

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    return TransformersEngine(EngineOptions({}, on_cpu=True))


@pytest.fixture(scope="module")
def generates(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    return ModelRef(str(tiny_models.write(tmp_path_factory.mktemp("llama"))))


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> ModelRef:
    return ModelRef(str(tiny_models.write(tmp_path_factory.mktemp("bert"), tiny_models.bert(), chat=False)))


def texts(number: int, longest: int, variant: int = 0) -> list[str]:
    chance = random.Random(variant)
    return ["".join(chance.choices("abcdefgh ", k=chance.randint(2, longest))) for _ in range(number)]


def values(found: list[Any]) -> list[Any]:
    assert not [each for each in found if isinstance(each, AssayError)], found
    return found


def test_rewards_do_not_depend_on_the_batch(engine: TransformersEngine, rewards: ModelRef) -> None:
    asked = [RewardRequest(*pair) for pair in zip(texts(300, 50), texts(300, 60, 1), strict=True)]
    together = values(engine.reward(rewards, asked))
    alone = [values(engine.reward(rewards, [request]))[0] for request in asked[:60]]
    assert [each.value for each in together[:60]] == pytest.approx([each.value for each in alone], abs=1e-5)
    assert len({round(each.value, 3) for each in together}) > 100
    bounded = values(engine.reward(rewards, asked, sigmoid=True))
    wanted = torch.tensor([each.value for each in together]).sigmoid().tolist()
    assert [each.value for each in bounded] == pytest.approx(wanted, abs=1e-6)


def test_scores_equal_those_of_the_model_without_padding(engine: TransformersEngine, rewards: ModelRef) -> None:
    network = BertForSequenceClassification.from_pretrained(rewards.name).eval()
    prompts, responses = texts(20, 50), texts(20, 60, 1)
    found = values(engine.reward(rewards, [RewardRequest(*pair) for pair in zip(prompts, responses, strict=True)]))
    vectors = values(engine.embed(rewards, responses))
    tokenizer = tiny_models.tokenizer()
    for prompt, response, scored, embedding in zip(prompts, responses, found, vectors, strict=True):
        with torch.no_grad():
            logits = network(**tokenizer(prompt, response, return_tensors="pt")).logits
            states = network.bert(**tokenizer(response, return_tensors="pt")).last_hidden_state[0]
        assert scored.value == pytest.approx(float(logits), abs=1e-4)
        assert embedding.vector == pytest.approx(normalize(states.mean(0), dim=0).tolist(), abs=1e-4)


def test_a_reward_is_the_models_logit_for_the_whole_dialogue(engine: TransformersEngine, tmp_path: Path) -> None:
    config = tiny_models.llama(num_labels=1)
    torch.manual_seed(0)
    network = AutoModelForSequenceClassification.from_config(config).eval()
    network.save_pretrained(tmp_path)
    tokenizer = tiny_models.tokenizer()
    tokenizer.save_pretrained(tmp_path)
    said = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    tokens = tokenizer("<user>one<assistant>two<user>three<assistant>four", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        wanted = float(network(tokens).logits)
    model = ModelRef(str(tmp_path))
    request = RewardRequest([*said, {"role": "user", "content": "three"}], "four")
    long = RewardRequest("x" * 900, "four")
    found, cut, text = values(engine.reward(model, [request, long, RewardRequest("three", "four")]))
    assert found.value == pytest.approx(wanted, abs=1e-5)
    assert (found.truncated, cut.truncated, cut.tokens) == (False, True, 512)
    assert text.tokens == len("three") + len("four") + 2


def test_a_pair_that_is_too_long_is_truncated_at_the_start_of_its_longer_part(
    engine: TransformersEngine, rewards: ModelRef
) -> None:
    fits, one, other = values(
        engine.reward(
            rewards,
            [
                RewardRequest("ab" * 10, "yes"),
                RewardRequest("c" * 500 + "ab" * 90, "yes"),
                RewardRequest("ab" * 300, "yes"),
            ],
        )
    )
    assert not fits.truncated
    assert one.truncated
    assert other.truncated
    assert one.tokens == other.tokens == 128
    assert one.value == pytest.approx(other.value, abs=1e-5), "both pairs are equal after truncation"


def test_a_classifier_of_several_labels_is_refused_as_a_reward_model(
    engine: TransformersEngine, tmp_path: Path
) -> None:
    config = tiny_models.bert()
    config.num_labels = 3
    tiny_models.write(tmp_path, config)
    with pytest.raises(ModelUnsupported, match="3 labels"):
        engine.reward(ModelRef(str(tmp_path)), [RewardRequest("a", "b")])


def test_embeddings_have_length_one_and_do_not_depend_on_their_batch(
    engine: TransformersEngine, rewards: ModelRef
) -> None:
    asked = texts(200, 120)
    together: list[Embedding] = values(engine.embed(rewards, asked))
    for text, embedding in list(zip(asked, together, strict=True))[:40]:
        (alone,) = values(engine.embed(rewards, [text]))
        assert embedding.vector == pytest.approx(alone.vector, abs=1e-5)
        assert sum(value * value for value in embedding.vector) == pytest.approx(1)
    (same, different) = values(engine.similarity(rewards, [(asked[0], asked[0]), (asked[0], asked[1])]))
    assert same.value == pytest.approx(1)
    wanted = sum(a * b for a, b in zip(together[0].vector, together[1].vector, strict=True))
    assert different.value == pytest.approx(wanted, abs=1e-5)
    (long,) = values(engine.embed(rewards, ["x" * 500]))
    assert (long.truncated, long.tokens) == (True, 128)


def test_likelihoods_do_not_depend_on_the_batch(engine: TransformersEngine, generates: ModelRef) -> None:
    asked = [AnswerRequest(*pair) for pair in zip(texts(200, 100), texts(200, 60, 1), strict=True)]
    together: list[Likelihood] = values(engine.likelihood(generates, asked))
    for request, found in list(zip(asked, together, strict=True))[:50]:
        (alone,) = values(engine.likelihood(generates, [request]))
        assert found.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
        assert len(found.logprobs) == len(request.answer)
        assert found.mean == pytest.approx(found.total / len(request.answer))


def test_a_likelihood_is_that_of_the_response_after_the_prompt(engine: TransformersEngine, generates: ModelRef) -> None:
    network = LlamaForCausalLM.from_pretrained(generates.name).eval()
    (found,) = values(engine.likelihood(generates, [AnswerRequest([{"role": "user", "content": "hi"}], "hello")]))
    tokens = tiny_models.tokenizer()("<user>hi<assistant>hello", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        shares = torch.log_softmax(network(tokens).logits[0, -6:-1], -1)
    assert found.logprobs == pytest.approx(shares.gather(1, tokens[0, -5:, None])[:, 0].tolist(), abs=1e-4)
    assert found.tokens_in == 4


def test_perplexity_equals_the_loss_of_transformers(engine: TransformersEngine, generates: ModelRef) -> None:
    network = LlamaForCausalLM.from_pretrained(generates.name).eval()
    asked = texts(30, 200)
    found: list[Scored] = values(engine.perplexity(generates, asked))
    for text, scored in zip(asked, found, strict=True):
        tokens = tiny_models.tokenizer()(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            loss = network(tokens, labels=tokens).loss
        assert scored.value == pytest.approx(float(loss.exp()), rel=1e-4)
        assert scored.tokens == len(text)


def test_a_text_that_cannot_be_scored_fails_only_its_item(engine: TransformersEngine, generates: ModelRef) -> None:
    kinds = [type(each) for each in engine.perplexity(generates, ["fine", "", "x", "y" * 600, "fine too"])]
    assert kinds == [Scored, InvalidRequest, InvalidRequest, PromptTooLong, Scored]
    asked = [AnswerRequest("a", "b"), AnswerRequest("a", ""), AnswerRequest("a", "b" * 600)]
    assert [type(each) for each in engine.likelihood(generates, asked)] == [Likelihood, InvalidRequest, PromptTooLong]


def test_out_of_memory_halves_batches_and_fails_only_a_text_too_large_alone(
    engine: TransformersEngine, rewards: ModelRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [RewardRequest(*pair) for pair in zip(texts(100, 40), texts(100, 40, 1), strict=True)]
    asked[17] = RewardRequest("z" * 100, "z")
    wanted = values(engine.reward(rewards, asked))
    forward, seen = BertForSequenceClassification.forward, []

    def limited(self: Any, input_ids: torch.Tensor, **others: Any) -> Any:
        seen.append(input_ids.shape[0])
        if input_ids.shape[0] > 9 or input_ids.shape[1] > 90:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(self, input_ids, **others)

    monkeypatch.setattr(BertForSequenceClassification, "forward", limited)
    found = engine.reward(rewards, asked)
    assert isinstance(found[17], DeviceOutOfMemory)
    del found[17], wanted[17]
    assert [each.value for each in values(found)] == pytest.approx([each.value for each in wanted], abs=1e-5)
    assert sum(number > 9 for number in seen) < 8
