"""Flags of `assay infer`, `assay contexts` and `assay pipeline`: their parsers, their validation, and the job spec.

Flags are spelled with underscores, as in the tools that these commands replace; dashes are accepted too.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

#: Flags that become fields of the spec, and flags that become fields of its `sampling`.
_SPEC = ("profile", "system", "template", "limit", "max_samples_per_worker")
_SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop")


def add_infer(command: argparse.ArgumentParser) -> None:
    _flag(command, "contexts_file", metavar="FILE", help="JSONL file of contexts (or .gz, .zst), or a URL; - is stdin")
    _add_inference(command)


def add_contexts(command: argparse.ArgumentParser) -> None:
    _add_retrieval(command)
    _flag(command, "output_file", metavar="FILE", help="file to write the contexts to")


def add_pipeline(command: argparse.ArgumentParser) -> None:
    _add_retrieval(command)
    _flag(command, "contexts_file", metavar="FILE", help="file to write the contexts to (beside the output file)")
    _add_inference(command)


def _add_retrieval(command: argparse.ArgumentParser) -> None:
    _flag(command, "queries_file", metavar="FILE", help="JSONL file of questions: query, target_api, dependencies, ...")
    _flag(command, "documents_file", metavar="FILE", help="JSONL file of documents: api, text")
    documents_help = "maximum number of documents in a context (1)"
    _flag(command, "documents_per_query", type=_integer(1), default=1, metavar="N", help=documents_help)
    similarity_help = "minimum cosine similarity of a document (0.2)"
    _flag(command, "min_similarity", type=_number(-1, 1), default=0.2, metavar="X", help=similarity_help)
    _flag(command, "embedding_model", default="minilm", metavar="MODEL", help="the server's embedding model (minilm)")


def _add_inference(command: argparse.ArgumentParser) -> None:
    output_help = "file to write the answers to, in input order, as they arrive"
    _flag(command, "output_file", metavar="FILE", help=output_help)
    _flag(command, "model_path", default="", metavar="MODEL", help="name of a model, or its path on the server's hosts")
    backend_help = "local, huggingface, togetherai, openai, vllm, or a backend of an installed package (local)"
    _flag(command, "inference_type", default="local", metavar="BACKEND", help=backend_help)
    _flag(command, "profile", metavar="NAME", help="the server's API profile, for backends that call an API")
    _flag(command, "max_new_tokens", type=_integer(1), metavar="N", help="maximum number of tokens of an answer (512)")
    _flag(command, "temperature", type=_number(0, 10), metavar="X", help="sampling temperature; 0 is greedy (0)")
    top_p_help = "sample only from the most likely tokens with this total probability (1)"
    _flag(command, "top_p", type=_number(0, 1, above=True), metavar="X", help=top_p_help)
    _flag(
        command,
        "top_k",
        type=_integer(0),
        metavar="N",
        help="sample only from the N most likely tokens; 0: no limit (0)",
    )
    _flag(command, "n", type=_integer(1), metavar="N", help="number of answers to each row (1)")
    _flag(command, "seed", type=_integer(0), metavar="N", help="seed of the sampling: equal seeds, equal answers (0)")
    _flag(command, "stop", action="append", metavar="TEXT", help="text that ends an answer; can be repeated")
    _flag(command, "system", type=_text, metavar="TEXT|@FILE", help="system prompt of every question")
    _flag(
        command, "template", type=_text, metavar="TEXT|@FILE", help="Jinja template of the prompt, with a row's fields"
    )
    _flag(command, "logprobs", action="store_true", help="store the log-probability of each token")
    _flag(command, "limit", type=_integer(1), metavar="N", help="run only the first N rows")
    per_worker_help = "run only the first N rows times the number of workers (MAX_SAMPLES_PER_WORKER)"
    _flag(command, "max_samples_per_worker", type=_integer(1), metavar="N", help=per_worker_help)
    _flag(command, "num_workers", type=_integer(1), metavar="N", help="expected number of workers (NUM_WORKERS)")
    resume_help = "keep the answered rows of the output file, and run the remaining rows"
    _flag(command, "resume_from_existing", action="store_true", help=resume_help)
    _flag(command, "per_worker_files", action="store_true", help="also write output_rank0.jsonl, ... beside the output")
    _flag(command, "statistics_file", metavar="FILE", help="write the statistics to this file as JSON")
    _flag(command, "skip_inference", action="store_true", help="show the division of the rows, without running them")
    _flag(command, "verbose", action="store_true", help="print the progress and every failed row")
    command.add_argument("--priority", choices=("interactive", "normal", "bulk"), default="normal")
    command.add_argument("--cache", choices=("use", "refresh", "off"), default="use")
    command.add_argument("--timeout", type=float, metavar="S", help="seconds to wait; the job keeps running after that")
    command.add_argument("--key", help="idempotency key: a submit with the same key returns the same job")


@dataclass(frozen=True)
class WorkerPlan:
    """Expected workers and GPUs of a run, from the flags, otherwise from the environment variables NUM_WORKERS,
    TOTAL_GPUS, GPUS_PER_WORKER and MAX_SAMPLES_PER_WORKER."""

    workers: int | None
    gpus: int
    gpus_per_worker: int | None
    max_rows_per_worker: int | None

    @classmethod
    def of(cls, args: argparse.Namespace, environment: Mapping[str, str]) -> WorkerPlan:
        """Read flags and environment. Raise ValueError for an invalid variable, or for more GPUs than TOTAL_GPUS."""
        workers = args.num_workers or _integer_variable(environment, "NUM_WORKERS")
        gpus = _integer_variable(environment, "TOTAL_GPUS", least=0)
        each = _integer_variable(environment, "GPUS_PER_WORKER")
        max_rows_per_worker = args.max_samples_per_worker or _integer_variable(environment, "MAX_SAMPLES_PER_WORKER")
        if gpus and each and not workers:
            workers = max(1, gpus // each)
        if gpus and each and workers and workers * each > gpus:
            raise ValueError(
                f"{workers} workers with {each} GPUs each (GPUS_PER_WORKER) need more than TOTAL_GPUS, which is {gpus}"
            )
        return cls(workers, gpus if gpus is not None else (workers or 0) * (each or 0), each, max_rows_per_worker)


def spec_of(args: argparse.Namespace, plan: WorkerPlan) -> dict[str, Any]:
    """Build the spec of the job from the given flags; the server's defaults apply to the others."""
    given = {name: getattr(args, name) for name in _SPEC if getattr(args, name) is not None}
    if plan.max_rows_per_worker:
        given["max_samples_per_worker"] = plan.max_rows_per_worker
    sampling = {name: getattr(args, name) for name in _SAMPLING if getattr(args, name) is not None}
    model = args.model_path
    if model and args.inference_type == "local" and os.path.isdir(model):
        model = os.path.abspath(model)  # the server has a different working directory
    spec: dict[str, Any] = {"backend": args.inference_type, **({"model": model} if model else {}), **given}
    if sampling:
        spec["sampling"] = sampling
    if args.logprobs:
        spec["logprobs"] = True
    return spec


def require(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        if not getattr(args, name):
            raise ValueError(f"--{name} is missing")


def require_readable(path: str) -> None:
    """Raise ValueError if a local file cannot be read or is empty. stdin and URLs are not checked here."""
    if path == "-" or "://" in path:
        return
    try:
        with open(path, "rb") as file:
            if not file.read(1):
                raise ValueError(f"{path}: the file is empty")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def require_local(path: str, flag: str) -> None:
    """Raise ValueError unless the path is a file that the client itself can read, more than once."""
    if path == "-" or "://" in path:
        raise ValueError(f"--{flag} needs a contexts file of this machine, not stdin or a URL")
    if path.endswith(".zst"):
        raise ValueError(f"--{flag} cannot read .zst files: decompress the file first")


def require_sampling_temperature(args: argparse.Namespace) -> None:
    if (args.n or 1) > 1 and not args.temperature:
        raise ValueError("--n: the answers would be equal at temperature 0; set --temperature above 0")


def require_model(args: argparse.Namespace) -> None:
    """Raise ValueError unless the model's path is a model directory. For a server on this machine only."""
    path = args.model_path
    if args.inference_type != "local" or os.sep not in path:
        return
    if not os.path.isdir(path):
        raise ValueError(f"{path}: no such directory")
    names = os.listdir(path)
    if "config.json" not in names and not any(name.endswith(".gguf") for name in names):
        raise ValueError(f"{path}: not a model directory: it has neither config.json nor a .gguf file")


def require_writable(path: str, *others: str) -> None:
    """Raise ValueError unless the path can be written. It must differ from `others`, the files that are read."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise ValueError(f"{path}: is a folder")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path}: is not a regular file: name another file")
    if not os.path.isdir(folder):
        raise ValueError(f"{path}: the folder {folder} does not exist")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise ValueError(f"{path}: no permission to write")
    for other in others:
        if os.path.realpath(other) == os.path.realpath(path):
            raise ValueError(f"{path}: cannot be read and written at the same time: name another file")


def _flag(command: argparse.ArgumentParser, name: str, **more: Any) -> None:
    command.add_argument(f"--{name}", **more)
    if "_" in name:
        shown = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
        command.add_argument(f"--{name.replace('_', '-')}", dest=name, **{**more, **shown})


def _integer_variable(environment: Mapping[str, str], name: str, least: int = 1) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdigit() or int(text) < least:
        raise ValueError(f"{name}: must be an integer of at least {least} (it is {text!r})")
    return int(text)


def _integer(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.strip().isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {least} (it is {text!r})")
        return int(text)

    return parse


def _number(low: float, high: float, above: bool = False) -> Callable[[str], float]:
    """Return a parser of numbers in a range; with `above`, the lower bound itself is excluded."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high or (above and value == low):
            bounds = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"must be a number {bounds} (it is {text!r})")
        return value

    return parse


def _text(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        with open(text[1:], encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{text[1:]}: {error}") from error
