"""What can be typed after `assay infer`, `assay contexts` and `assay pipeline`, and what it asks for.

Flags are spelt with underscores, as in the tools these commands take the place of; dashes are understood too.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

#: Flags that become fields of the spec, and of its sampling.
_SPEC = ("profile", "system", "template", "limit", "max_samples_per_worker")
_SAMPLING = ("max_new_tokens", "temperature", "top_p", "top_k", "n", "seed", "stop")


def add_infer(command: argparse.ArgumentParser) -> None:
    _flag(command, "contexts_file", metavar="FILE", help="JSONL of contexts (.gz and .zst too), or a URL; - is stdin")
    _add_inference(command)


def add_contexts(command: argparse.ArgumentParser) -> None:
    _add_retrieval(command)
    _flag(command, "output_file", metavar="FILE", help="where the contexts go")


def add_pipeline(command: argparse.ArgumentParser) -> None:
    _add_retrieval(command)
    _flag(command, "contexts_file", metavar="FILE", help="where the contexts go (beside the output)")
    _add_inference(command)


def _add_retrieval(command: argparse.ArgumentParser) -> None:
    _flag(command, "queries_file", metavar="FILE", help="JSONL of questions: query, target_api, dependencies, ...")
    _flag(command, "documents_file", metavar="FILE", help="JSONL of documents: api, text")
    _flag(
        command,
        "documents_per_query",
        type=_whole(1),
        default=1,
        metavar="N",
        help="documents in a context at most (1)",
    )
    _flag(
        command, "min_similarity", type=_number(-1, 1), default=0.2, metavar="X",
        help="cosine that a document must have at least (0.2)",
    )  # fmt: skip
    _flag(command, "embedding_model", default="minilm", metavar="MODEL", help="the server's embedding model (minilm)")


def _add_inference(command: argparse.ArgumentParser) -> None:
    _flag(command, "output_file", metavar="FILE", help="where the answers go, in input order, as they come")
    _flag(command, "model_path", default="", metavar="MODEL", help="a model's name, or its path on the server's hosts")
    _flag(
        command, "inference_type", default="local", metavar="BACKEND",
        help="local, huggingface, togetherai, openai, vllm, or one of an installed package (local)",
    )  # fmt: skip
    _flag(command, "profile", metavar="NAME", help="for an API: which of the server's profiles")
    _flag(command, "max_new_tokens", type=_whole(1), metavar="N", help="tokens of an answer at most (512)")
    _flag(command, "temperature", type=_number(0, 10), metavar="X", help="0: the likeliest token each time (0)")
    _flag(
        command,
        "top_p",
        type=_number(0, 1, above=True),
        metavar="X",
        help="draw among the likeliest that make up this much (1)",
    )
    _flag(command, "top_k", type=_whole(0), metavar="N", help="draw among this many; 0: all (0)")
    _flag(command, "n", type=_whole(1), metavar="N", help="answers to each row (1)")
    _flag(command, "seed", type=_whole(0), metavar="N", help="the same seed gives the same answers (0)")
    _flag(command, "stop", action="append", metavar="TEXT", help="a text that ends an answer; may be given again")
    _flag(command, "system", type=_text, metavar="TEXT|@FILE", help="what stands before every question")
    _flag(command, "template", type=_text, metavar="TEXT|@FILE", help="Jinja, with the fields of a row")
    _flag(command, "logprobs", action="store_true", help="keep the log-probability of each token")
    _flag(command, "limit", type=_whole(1), metavar="N", help="only the first N rows")
    _flag(
        command, "max_samples_per_worker", type=_whole(1), metavar="N",
        help="only the first N rows for each worker there is (MAX_SAMPLES_PER_WORKER)",
    )  # fmt: skip
    _flag(command, "num_workers", type=_whole(1), metavar="N", help="workers to count on (NUM_WORKERS)")
    _flag(
        command, "resume_from_existing", action="store_true",
        help="keep what the output file has answered already, and run the rest",
    )  # fmt: skip
    _flag(command, "per_worker_files", action="store_true", help="also write output_rank0.jsonl, ... beside the output")
    _flag(command, "statistics_file", metavar="FILE", help="write the statistics here as JSON")
    _flag(command, "skip_inference", action="store_true", help="show how the rows would be divided, and run nothing")
    _flag(command, "verbose", action="store_true", help="tell what happens, row by failed row")
    command.add_argument("--priority", choices=("interactive", "normal", "bulk"), default="normal")
    command.add_argument("--cache", choices=("use", "refresh", "off"), default="use")
    command.add_argument("--timeout", type=float, metavar="S", help="seconds to wait; the job goes on after that")
    command.add_argument("--key", help="idempotency key: the same key is the same job")


@dataclass(frozen=True)
class Fleet:
    """The workers a run counts on: flags, else NUM_WORKERS, TOTAL_GPUS, GPUS_PER_WORKER, MAX_SAMPLES_PER_WORKER."""

    workers: int | None
    gpus: int
    gpus_per_worker: int | None
    most_each: int | None

    @classmethod
    def of(cls, args: argparse.Namespace, environment: Mapping[str, str]) -> Fleet:
        """Raises ValueError with a sentence."""
        workers = args.num_workers or _variable(environment, "NUM_WORKERS")
        gpus = _variable(environment, "TOTAL_GPUS", least=0)
        each = _variable(environment, "GPUS_PER_WORKER")
        most_each = args.max_samples_per_worker or _variable(environment, "MAX_SAMPLES_PER_WORKER")
        if gpus and each and not workers:
            workers = max(1, gpus // each)
        if gpus and each and workers and workers * each > gpus:
            raise ValueError(
                f"{workers} workers with {each} GPUs each (GPUS_PER_WORKER) are more than TOTAL_GPUS, which is {gpus}"
            )
        return cls(workers, gpus if gpus is not None else (workers or 0) * (each or 0), each, most_each)


def spec_of(args: argparse.Namespace, fleet: Fleet) -> dict[str, Any]:
    """What the job is asked for. What was not given is left to the server."""
    given = {name: getattr(args, name) for name in _SPEC if getattr(args, name) is not None}
    if fleet.most_each:
        given["max_samples_per_worker"] = fleet.most_each
    sampling = {name: getattr(args, name) for name in _SAMPLING if getattr(args, name) is not None}
    model = args.model_path
    if model and args.inference_type == "local" and os.path.isdir(model):
        model = os.path.abspath(model)  # the server has another working directory
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
    """Raises ValueError with a sentence; what is no file of ours is looked at by others."""
    if path == "-" or "://" in path:
        return
    try:
        with open(path, "rb") as file:
            if not file.read(1):
                raise ValueError(f"{path}: the file is empty")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def require_here(path: str, flag: str) -> None:
    """What the command itself must read, and some of it more than once."""
    if path == "-" or "://" in path:
        raise ValueError(f"--{flag}: needs a contexts file of this machine")
    if path.endswith(".zst"):
        raise ValueError(f"--{flag}: cannot read .zst files: unpack it first")


def require_draws(args: argparse.Namespace) -> None:
    if (args.n or 1) > 1 and not args.temperature:
        raise ValueError("--n: at temperature 0 all answers would be the same one; give a --temperature, too")


def require_model(args: argparse.Namespace) -> None:
    """Where the server is this machine: whether there is a model at the path it is given."""
    path = args.model_path
    if args.inference_type != "local" or os.sep not in path:
        return
    if not os.path.isdir(path):
        raise ValueError(f"{path}: no such directory")
    names = os.listdir(path)
    if "config.json" not in names and not any(name.endswith(".gguf") for name in names):
        raise ValueError(f"{path}: not a model: config.json missing")


def require_writable(path: str, *others: str) -> None:
    """`others`: files that are read meanwhile."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise ValueError(f"{path}: is a folder")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path}: is no file, and would be replaced by one")
    if not os.path.isdir(folder):
        raise ValueError(f"{path}: there is no folder {folder}")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise ValueError(f"{path}: may not be written")
    for other in others:
        if os.path.realpath(other) == os.path.realpath(path):
            raise ValueError(f"{path}: cannot be read and written at the same time: name another file")


def _flag(command: argparse.ArgumentParser, name: str, **more: Any) -> None:
    command.add_argument(f"--{name}", **more)
    if "_" in name:
        shown = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
        command.add_argument(f"--{name.replace('_', '-')}", dest=name, **{**more, **shown})


def _variable(environment: Mapping[str, str], name: str, least: int = 1) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdigit() or int(text) < least:
        raise ValueError(f"{name}: must be a whole number from {least} on (it is {text!r})")
    return int(text)


def _whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.strip().isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} on (it is {text!r})")
        return int(text)

    return parse


def _number(low: float, high: float, above: bool = False) -> Callable[[str], float]:
    """`above`: the lower bound itself is too low."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high or (above and value == low):
            bounds = f"above {low:g}, up to {high:g}" if above else f"from {low:g} to {high:g}"
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
