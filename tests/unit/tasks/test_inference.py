"""Inference rows: validation of input rows, rendering of prompts, output rows, model names, statistics."""

from typing import Any

import pytest
from pydantic import ValidationError

from tasks.errors import CannotAnswer, DeviceOutOfMemory, InvalidRequest
from tasks.inference.duplicates import settled
from tasks.inference.engine import Generated, ModelRef
from tasks.inference.fingerprint import fingerprint
from tasks.inference.generation import refusal, requests_of, result_of
from tasks.inference.kind import Inference
from tasks.inference.model import InferenceItem, InferenceSpec
from tasks.inference.models import Models, identity
from tasks.inference.prompts import check_template, messages_of
from tasks.inference.rows import output_row
from tasks.inference.statistics import Statistics
from tasks.jobs.model import Result
from tasks.judging.key import as_named

ROW = {
    "id": "item_123",
    "original_item_id": "original_45",
    "query_index": 1,
    "dedup_key": "query_text_api_name",
    "query": "How to use numpy.array?",
    "target_api": "numpy.array",
    "dependencies": {"numpy": "1.16.6"},
    "retrieval_method": "exact_api_match",
    "context": "Documentation for numpy.array...",
    "context_length": 150,
    "retrieval_time": 0.12,
    "success": True,
}


def spec(**fields: Any) -> InferenceSpec:
    return InferenceSpec.model_validate(fields)


def item(**fields: Any) -> InferenceItem:
    return InferenceItem.model_validate(ROW | fields)


def generated(text: str = "To use numpy.array, you can...") -> Generated:
    return Generated(text, "stop", 30, (1, 2, 3), (-0.1, -0.2, -0.3), "v1")


def outcome(**fields: Any) -> dict[str, Any]:
    value = {"answers": ["To use it ..."], "finish": ["stop"], "tokens": {"prompt": 30, "completion": 3},
             "inference_time": 1.45, "model": "m", "version": "v1"}  # fmt: skip
    row = {"status": "ok", "value": value, "error": None, "cached": False, "worker": "gpu.node1.0", "latency_ms": 1500}
    return row | fields


def failed(kind: str, message: str) -> dict[str, Any]:
    return outcome(status="failed", value=None, error={"type": kind, "message": message, "retryable": False})


# --- rows out ---------------------------------------------------------------------------------------------------------


def test_a_successful_row_is_the_input_without_context_plus_the_answer() -> None:
    assert output_row(ROW, outcome(), "local") == {
        "id": "item_123",
        "original_item_id": "original_45",
        "query_index": 1,
        "dedup_key": "query_text_api_name",
        "query": "How to use numpy.array?",
        "target_api": "numpy.array",
        "dependencies": {"numpy": "1.16.6"},
        "retrieval_method": "exact_api_match",
        "context_length": 150,
        "answer": "To use it ...",
        "retrieval_time": 0.12,
        "inference_time": 1.45,
        "total_time": 1.57,
        "worker_rank": 0,
        "success": True,
    }
    assert list(output_row(ROW, outcome(), "local"))[:4] == ["id", "original_item_id", "query_index", "dedup_key"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("device_out_of_memory", "GPU Out of Memory: no"),
        ("api_refused", "API Error: no"),
        ("api_unavailable", "API Error: no"),
        ("api_unreachable", "Network/Timeout Error: no"),
        ("api_timeout", "Network/Timeout Error: no"),
        ("timed_out", "Network/Timeout Error: no"),
        ("context_failed", "Context generation failed: no"),
        ("empty_answer", "Inference error: no"),
        ("worker_lost", "Inference error: no"),
    ],
)
def test_a_failed_row_keeps_its_keys_and_has_an_error(kind: str, said: str) -> None:
    row = output_row(ROW, failed(kind, "no"), "local")
    assert row == {
        "id": "item_123",
        "original_item_id": "original_45",
        "query_index": 1,
        "dedup_key": "query_text_api_name",
        "error": said,
        "exception_type": row["exception_type"],
        "processing_time": 1.5,
        "worker_rank": 0,
        "inference_type": "local",
        "success": False,
    }


def test_an_out_of_memory_error_is_not_prefixed_twice() -> None:
    result = result_of(spec(), ModelRef("m"), [DeviceOutOfMemory()], 1)
    assert result.error
    row = output_row(ROW, failed(result.error.type, result.error.message), "local")
    assert row["error"] == f"GPU Out of Memory: {DeviceOutOfMemory()}"
    assert row["exception_type"] == "DeviceOutOfMemory"


def test_several_answers_are_listed_and_the_first_is_the_answer() -> None:
    result = result_of(
        spec(sampling={"n": 2, "temperature": 1}), ModelRef("/models/m"), [generated("a"), generated("b")], 1
    )
    row = output_row(ROW, outcome(value=result.value), "local")
    assert (row["answer"], row["answers"]) == ("a", ["a", "b"])


# --- results ----------------------------------------------------------------------------------------------------------


def test_an_empty_answer_has_its_own_error_type() -> None:
    result = result_of(spec(), ModelRef("/models/m"), [generated("  \n")], 1.0)
    assert result.error
    assert result.error.type == "empty_answer"


def test_a_failed_sample_fails_its_row_with_the_reason() -> None:
    result = result_of(
        spec(sampling={"n": 2, "temperature": 1}), ModelRef("m"), [generated(), CannotAnswer("broken", "No.")], 1
    )
    assert result.error
    assert (result.error.type, result.error.message) == ("broken", "No.")


def test_a_row_without_a_context_is_not_run() -> None:
    refused = refusal(item(success=False, error="Context generation failed: no document"))
    assert refused
    assert refused.error
    assert (refused.error.type, refused.error.message) == ("context_failed", "no document")
    assert refusal(item()) is None


# --- rows in ----------------------------------------------------------------------------------------------------------


def test_a_row_needs_a_query_or_messages() -> None:
    with pytest.raises(ValidationError, match="`query`: is missing"):
        InferenceItem.model_validate({"id": "a"})
    assert InferenceItem.model_validate({"id": 7, "success": False}).id == 7


def test_the_default_prompt_has_context_and_query() -> None:
    (message,) = messages_of(spec(), item())
    assert message["role"] == "user"
    assert "Documentation for numpy.array..." in message["content"]
    assert message["content"].endswith("Question: How to use numpy.array?")
    assert messages_of(spec(), item(context=None)) == [{"role": "user", "content": "How to use numpy.array?"}]


def test_a_template_may_use_every_field_of_a_row() -> None:
    asked = spec(template="{{ target_api }} of {{ dependencies.numpy }}: {{ query }}", system="Be brief.")
    assert messages_of(asked, item()) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "numpy.array of 1.16.6: How to use numpy.array?"},
    ]


def test_an_unfitting_template_fails_the_row_and_an_invalid_one_the_job() -> None:
    with pytest.raises(CannotAnswer, match="color"):
        messages_of(spec(template="{{ color }}"), item())
    with pytest.raises(InvalidRequest, match=r"spec\.template"):
        check_template(spec(template="{{ query"))


def test_a_template_cannot_escape_its_sandbox() -> None:
    with pytest.raises(CannotAnswer):
        messages_of(spec(template="{{ ''.__class__.__mro__[1].__subclasses__() }}"), item())


def test_each_sample_is_a_separate_request() -> None:
    requests = requests_of(spec(sampling={"n": 3, "temperature": 0.7, "seed": 5}), item())
    assert [(request.sample, request.sampling.seed) for request in requests] == [(0, 5), (1, 5), (2, 5)]


def test_several_answers_at_temperature_0_are_refused() -> None:
    with pytest.raises(ValidationError, match="the answers would be equal"):
        spec(sampling={"n": 2})


# --- duplicates -------------------------------------------------------------------------------------------------------


def test_rows_with_the_same_dedup_key_use_the_query_of_the_first() -> None:
    rows = [
        {"id": "a", "dedup_key": "k", "query": "one", "context": "x"},
        {"id": "b", "dedup_key": "k", "query": "two", "context": "y"},
        {"id": "c", "dedup_key": "k", "query": "one", "context": "x", "retrieval_time": 9},
        {"id": "d", "dedup_key": "other", "query": "two"},
        {"id": "e", "query": "two"},
    ]
    found = list(settled(iter(rows)))
    assert [row["id"] for row in found] == ["a", "b", "c", "d", "e"]
    assert ["answered_as" in row for row in found] == [False, True, False, False, False]
    asked = [messages_of(spec(), InferenceItem.model_validate(row)) for row in found]
    assert asked[0] == asked[1] == asked[2] != asked[3]


def test_a_failed_row_supplies_no_query_to_duplicates() -> None:
    rows = [
        {"dedup_key": "k", "success": False},
        {"dedup_key": "k", "query": "one"},
        {"dedup_key": "k", "query": "two"},
    ]
    found = list(settled(iter(rows)))
    assert ("answered_as" in found[1], found[2]["answered_as"]["query"]) == (False, "one")


def test_clients_cannot_set_answered_as() -> None:
    assert list(settled(iter([{"query": "a", "answered_as": {"query": "b"}}]))) == [{"query": "a"}]


@pytest.mark.parametrize(
    ("fields", "slots", "taken"),
    [
        ({}, 2, 10),
        ({"limit": 3}, 2, 3),
        ({"max_samples_per_worker": 4}, 2, 8),
        ({"limit": 5, "max_samples_per_worker": 1}, 3, 3),
    ],
)
def test_a_job_takes_the_first_rows_only(tmp_path: Any, fields: dict[str, int], slots: int, taken: int) -> None:
    kind = Inference(Models(tmp_path), as_named)
    rows = [{"id": str(n), "query": "?"} for n in range(10)]
    selector = kind.item_selector(spec(**fields), lambda: slots)
    chosen = list(selector(iter(rows)))
    assert [row["id"] for row in chosen] == [str(n) for n in range(taken)]


# --- models -----------------------------------------------------------------------------------------------------------


def test_models_are_found_by_name_or_by_an_allowed_path(tmp_path: Any) -> None:
    for name in ("models/small", "elsewhere/mine", "secret/theirs"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    for name in ("elsewhere/empty", "models/empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere/link").symlink_to(tmp_path / "secret/theirs")
    models = Models(tmp_path / "models", paths=str(tmp_path / "elsewhere"))
    assert models.find(spec(model="small")).name == str(tmp_path / "models/small")
    assert models.find(spec()).name == str(tmp_path / "models/small")
    assert models.find(spec(model=str(tmp_path / "elsewhere/mine"))).name == str(tmp_path / "elsewhere/mine")
    for given, said in (
        ("empty", "not a model: config.json missing in empty"),
        ("large", "unknown model 'large': use small"),
        (str(tmp_path / "secret/theirs"), "nor a path allowed by ASSAY_MODEL_PATHS"),
        (str(tmp_path / "elsewhere/../secret/theirs"), "nor a path allowed by ASSAY_MODEL_PATHS"),
        (str(tmp_path / "elsewhere/link"), "nor a path allowed by ASSAY_MODEL_PATHS"),
        (str(tmp_path / "elsewhere/none"), "no such directory"),
        (str(tmp_path / "elsewhere/empty"), "not a model: config.json missing"),
    ):
        with pytest.raises(InvalidRequest, match=r"spec\.model") as caught:
            models.find(spec(model=given))
        assert said in str(caught.value)


def test_changed_weights_change_the_identity_of_a_model(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    with weights.open("wb") as file:
        file.truncate(100 << 20)  # a sparse file, which takes no room on disk
    before = identity(ModelRef(str(tmp_path)))
    assert before
    weights.touch()
    assert identity(ModelRef(str(tmp_path))) == before, "the time of modification does not count"
    with weights.open("r+b") as file:  # change a layer in the middle; both ends of the file stay unchanged
        file.seek(40 << 20)
        file.write(b"a" * (1 << 20))
    assert identity(ModelRef(str(tmp_path))) != before
    assert identity(ModelRef(str(tmp_path / "none"))) is None
    assert identity(ModelRef("someone/tiny", "c0ffee")) == "someone/tiny@c0ffee"


def test_a_changed_tokenizer_or_template_changes_the_identity(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    before = fingerprint(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ massages }}")
    assert fingerprint(tmp_path) != before


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics_are_per_worker_and_in_total() -> None:
    figures = Statistics()
    for worker, row in (("gpu.n.0", outcome()), ("gpu.n.1", outcome()), ("gpu.n.1", failed("empty_answer", "no"))):
        figures.add(row | {"worker": worker})
    figures.add(outcome(cached=True, worker=None))
    told = figures.as_json({"gpu.n.0": 2.0, "gpu.n.1": 4.0}, 3.0)
    assert [(each["worker_rank"], each["contexts"], each["errors"]) for each in told["workers"]] == [
        (0, 1, 0),
        (1, 2, 1),
    ]
    assert told["workers"][0]["tokens_per_s"] == 1.5
    total = told["total"]
    assert (total["contexts"], total["successes"], total["errors"], total["cached"]) == (4, 3, 1, 1)
    assert total["average_inference_time"] == 1.45
    assert (total["completion_tokens"], total["reasons"]) == (6, {"empty_answer": 1})
    assert isinstance(result_of(spec(), ModelRef("m"), [generated()], 1), Result)
