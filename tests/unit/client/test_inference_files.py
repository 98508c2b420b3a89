"""Client side of inference: contexts from questions and documents, division of rows, statistics block and flags."""

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from assay import AssayError
from assay.cli import parser
from assay.cli.inference_flags import WorkerPlan, spec_of
from assay.cli.progress_view import worker_lines
from assay.inference import retrieval, rows, shards, statistics
from assay.inference.documents import Documents
from assay.model import JobView
from hypothesis import given
from hypothesis import strategies as st

from tasks.inference.model import InferenceItem, InferenceSpec
from workers.devices.allocation import allocate

# Division


@given(st.integers(0, 20_000), st.integers(1, 40))
def test_rows_divide_evenly_without_loss(number: int, workers: int) -> None:
    parts = shards.divide(number, workers)
    assert [n for part in parts for n in part] == list(range(number))
    sizes = [len(part) for part in parts]
    assert len(sizes) == workers
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 40), st.integers(1, 20))
def test_gpus_are_divided_like_in_the_launcher(gpus: int, workers: int) -> None:
    theirs = allocate([str(n) for n in range(gpus)], workers).groups
    assert [tuple(str(gpu) for gpu in share) for share in shards.allocate(gpus, workers)] == list(theirs)


def test_recommended_set_ups_get_the_documented_division() -> None:
    assert shards.allocate(8, 4) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    for gpus, workers, each in ((4, 2, 2), (8, 4, 2), (8, 8, 1), (8, 2, 4)):
        assert {len(share) for share in shards.allocate(gpus, workers)} == {each}
    assert shards.allocate(8, 2, 1) == [(0,), (1,)]
    assert [len(share.rows) for share in shards.shares(10_007, 4)] == [2502, 2502, 2502, 2501]
    assert [len(share.rows) for share in shards.shares(10_007, 4, most_each=100)] == [100] * 4


# The statistics block


def share(**more: Any) -> dict[str, Any]:
    return {
        "contexts": 250,
        "successes": 245,
        "errors": 5,
        "success_rate": 0.98,
        "average_inference_time": 1.234,
        "cached": 0,
        "tokens_per_s": None,
        "reasons": {},
    } | more


BLOCK = """\
Worker 0 INFERENCE STATISTICS
============================================================
Total contexts processed: 250
Successful inferences: 245
Errors: 5
Success rate: 98.0%
Average inference time: 1.23s
Results saved to: output_rank0.jsonl
"""


def test_the_statistics_block_of_a_worker_has_the_documented_form() -> None:
    told = {
        "workers": [share(worker="gpu.box.0", worker_rank=0)],
        "total": share(tokens_per_s=55.12, cached=3, close_calls=2),
    }
    text = statistics.blocks(told, "output.jsonl", {0: "output_rank0.jsonl"})
    assert text.startswith(BLOCK)
    total = text[len(BLOCK) + 1 :].splitlines()
    assert total[0] == "TOTAL INFERENCE STATISTICS"
    assert total[-4:] == [
        "Results saved to: output.jsonl",
        "Tokens per second: 55.1",
        "From the cache: 3",
        "Rows with an answer that may depend on the batch: 2",
    ]


def test_unknown_statistics_are_shown_as_not_available() -> None:
    nothing = share(contexts=0, successes=0, errors=0, success_rate=None, average_inference_time=None)
    text = statistics.blocks({"workers": [], "total": nothing | {"reasons": {"empty_answer": 2}}}, "out.jsonl", {})
    assert "Success rate: n/a\nAverage inference time: n/a\n" in text
    assert text.endswith("Errors by type: empty_answer 2")


def test_workers_with_the_same_rank_on_two_hosts_are_distinguished() -> None:
    workers = [share(worker=f"gpu.{host}.0", worker_rank=0) for host in ("a", "b")]
    text = statistics.blocks({"workers": workers, "total": share()}, "out.jsonl", {})
    assert "Worker 0 (gpu.a.0) INFERENCE" in text
    assert "Worker 0 (gpu.b.0) INFERENCE" in text


def test_progress_shows_workers_by_rank_and_fits_the_available_lines() -> None:
    view = JobView("job", workers={f"gpu.box.{n}": {"items": 10 * n, "seconds": 5.0} for n in (10, 2, 0)})
    assert worker_lines(view, 80, 10) == [
        "  worker 0  gpu.box.0  0 rows  0.0/s",
        "  worker 2  gpu.box.2  20 rows  4.0/s",
        "  worker 10  gpu.box.10  100 rows  20.0/s",
    ]
    assert worker_lines(view, 80, 2)[1:] == ["  and 2 more workers"]


# Flags and environment variables


def parsed(*argv: str) -> Any:
    return parser.build().parse_args(["infer", *argv])


def test_flags_become_a_spec_that_the_server_accepts() -> None:
    args = parsed(
        *shlex.split(
            "--contexts_file c --output-file o --model_path m --inference-type huggingface --profile p "
            "--max_new_tokens 64 --temperature 0.5 --top-p 0.9 --top_k 5 --n 2 --seed 3 --stop a --stop b --logprobs "
            "--system 'Be brief.' --template '{{ query }}' --limit 10 --max-samples-per-worker 5"
        )
    )
    spec = spec_of(args, WorkerPlan.of(args, {}))
    made = InferenceSpec.model_validate(spec)
    assert made.model_dump(exclude_defaults=True) == {
        "backend": "huggingface",
        "model": "m",
        "profile": "p",
        "system": "Be brief.",
        "template": "{{ query }}",
        "logprobs": True,
        "limit": 10,
        "max_samples_per_worker": 5,
        "sampling": {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "max_new_tokens": 64,
            "stop": ("a", "b"),
            "seed": 3,
            "n": 2,
        },
    }
    assert (args.contexts_file, args.output_file) == ("c", "o")


def test_flags_that_are_not_given_are_left_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = parsed("--contexts_file", "c")
    assert spec_of(args, WorkerPlan.of(args, {})) == {"backend": "local"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    args = parsed("--model_path", "model")
    assert spec_of(args, WorkerPlan.of(args, {}))["model"] == str(tmp_path / "model"), (
        "the server has a different working directory"
    )


def test_environment_variables_are_the_defaults_of_flags() -> None:
    variables = {"NUM_WORKERS": "4", "TOTAL_GPUS": "8", "GPUS_PER_WORKER": "2", "MAX_SAMPLES_PER_WORKER": "100"}
    assert WorkerPlan.of(parsed(), variables) == WorkerPlan(4, 8, 2, 100)
    assert WorkerPlan.of(parsed("--num_workers", "2", "--max_samples_per_worker", "7"), variables) == WorkerPlan(
        2, 8, 2, 7
    )
    assert WorkerPlan.of(parsed(), {"TOTAL_GPUS": "8", "GPUS_PER_WORKER": "4"}).workers == 2
    assert WorkerPlan.of(parsed(), {"NUM_WORKERS": "", "TOTAL_GPUS": "0"}) == WorkerPlan(None, 0, None, None)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NUM_WORKERS": "four"}, "NUM_WORKERS: must be an integer of at least 1 (it is 'four')"),
        ({"NUM_WORKERS": "0"}, "NUM_WORKERS"),
        ({"TOTAL_GPUS": "-1"}, "TOTAL_GPUS"),
        ({"NUM_WORKERS": "4", "TOTAL_GPUS": "8", "GPUS_PER_WORKER": "4"}, "more than TOTAL_GPUS, which is 8"),
    ],
)
def test_the_error_for_an_invalid_variable_names_it(variables: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError) as error:
        WorkerPlan.of(parsed(), variables)
    assert said in str(error.value)


# Contexts


DOCUMENTS = [
    {"api": "numpy.array", "text": "array makes arrays"},
    {"api": "numpy.zeros", "text": "zeros makes zeros"},
    {"api": "numpy.array", "text": "more on arrays"},
    {"text": "bananas are yellow"},
]


def write(path: Path, lines: Iterable[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def letters(texts: Iterable[str]) -> Iterator[Sequence[float] | str]:
    """Embed texts by their letter counts, in place of an embedding model."""
    for each in texts:
        yield (
            "it cannot be read"
            if "!" in each
            else [float(each.count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"]
        )


def made(
    tmp_path: Path, *queries: dict[str, Any], documents: Sequence[dict[str, Any]] = DOCUMENTS, **more: Any
) -> list[Any]:
    options = {"per_query": 1, "min_similarity": 0.5} | more
    path = write(tmp_path / "queries.jsonl", queries)
    assert retrieval.check_queries(path) == len(queries)
    return list(retrieval.contexts(path, Documents(write(tmp_path / "documents.jsonl", documents)), letters, **options))


def test_a_context_is_found_by_the_name_of_its_api(tmp_path: Path) -> None:
    query = {"id": "item_123", "original_item_id": "original_45", "query_index": 1, "query": "How to use numpy.array?"}
    query |= {"target_api": "numpy.array", "dependencies": {"numpy": "1.16.6"}, "difficulty": 3}
    (row,) = made(tmp_path, query)
    time = row.pop("retrieval_time")
    assert time >= 0
    assert row == query | {
        "dedup_key": "How to use numpy.array?_numpy.array",
        "retrieval_method": "exact_api_match",
        "context": "array makes arrays",
        "context_length": 18,
        "success": True,
    }
    assert list(row)[:6] == ["id", "original_item_id", "query_index", "dedup_key", "query", "target_api"]
    (row,) = made(tmp_path, query, per_query=5)
    assert row["context"] == "array makes arrays\n\nmore on arrays"


def test_a_context_is_found_by_similarity_if_no_document_has_the_name(tmp_path: Path) -> None:
    named, unnamed = made(tmp_path, {"query": "yellow bananas", "target_api": "fruit.peel"}, {"query": "zeros made"})
    assert (named["retrieval_method"], named["context"]) == ("embedding_similarity", "bananas are yellow")
    assert named["dedup_key"] == "yellow bananas_fruit.peel"
    assert (unnamed["context"], unnamed["target_api"]) == ("zeros makes zeros", "numpy.zeros")
    assert unnamed["dedup_key"] == "zeros made_numpy.zeros"
    assert [row["id"] for row in (named, unnamed)] == ["item_0", "item_1"]
    assert InferenceItem.model_validate(unnamed)


def test_a_question_without_a_similar_document_fails_with_a_reason(tmp_path: Path) -> None:
    far, broken, fine = made(tmp_path, {"query": "qqq"}, {"query": "!"}, {"query": "yellow bananas"})
    assert (far["success"], far["context"], far["retrieval_method"]) == (False, "", None)
    assert far["error"] == "No document is similar enough: the highest similarity is 0.00, the minimum is 0.5."
    assert broken["error"] == "The question could not be embedded: it cannot be read"
    assert fine["success"]
    assert InferenceItem.model_validate(far).success is False
    (row,) = made(tmp_path, {"query": "any"}, documents=[])
    assert row["error"] == "There are no documents."


def test_failed_embeddings_of_all_documents_raise_a_single_error(tmp_path: Path) -> None:
    with pytest.raises(AssayError, match="No document could be embedded: it cannot be read"):
        made(tmp_path, {"query": "any"}, documents=[{"text": "!"}])
    (row,) = made(tmp_path, {"query": "any"}, documents=[{"text": "!"}, {"text": "many"}])
    assert row["context"] == "many"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 3: the line is not a JSON object"),
        ("[1]", "line 3: the line is not a JSON object"),
        ('{"id": 1}', "line 3: `query` is missing"),
        ('{"query": "  "}', "line 3: `query` is missing"),
        ('{"query": "q", "target_api": 3}', "line 3: `target_api` is not a string"),
    ],
)
def test_the_error_for_an_invalid_question_has_its_line_number(tmp_path: Path, line: str, said: str) -> None:
    (path := tmp_path / "queries.jsonl").write_text(f'{{"query": "fine"}}\n\n{line}\n')
    with pytest.raises(ValueError) as error:
        retrieval.check_queries(str(path))
    assert said in str(error.value)


def test_many_questions_are_embedded_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "PAGE", 3)
    told = made(
        tmp_path, *({"query": f"yellow bananas {n}", "target_api": "numpy.array" if n % 2 else None} for n in range(8))
    )
    assert [row["retrieval_method"] for row in told] == ["embedding_similarity", "exact_api_match"] * 4
    assert [row["query"] for row in told] == [f"yellow bananas {n}" for n in range(8)]


def test_lines_have_numbers_and_byte_offsets(tmp_path: Path) -> None:
    (path := tmp_path / "file.jsonl").write_bytes(b"\xef\xbb\xbfa\r\n\nb")
    assert [tuple(line) for line in rows.lines(path)] == [(1, 3, b"a\r\n"), (2, 6, b"\n"), (3, 7, b"b")]
    assert rows.count(path) == 2
