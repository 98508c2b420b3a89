"""What can be typed after `assay`."""

from __future__ import annotations

import argparse
import json
from typing import Any, Callable

from assay.cli import benchmarks, checkup, completion, fleet, inference, inference_flags, jobs, scorers
from assay.cli.session import Session
from assay.version import VERSION

Command = Callable[[Session], int]


def build() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="assay",
        description="Score, judge and infer on an Assay server.",
        epilog="The server is ASSAY_URL (http://127.0.0.1:6006), the token ASSAY_TOKEN. "
        "Exit codes: 0 fine, 1 the job or items of it failed, 2 wrong usage, 3 no connection, 4 refused by the server, "
        "5 --timeout is up, 130 Ctrl-C (which cancels nothing).",
    )
    parser.add_argument("--version", action="version", version=f"assay-client {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    shared = _shared()

    def add(name: str, run: Command, about: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about, parents=[shared])
        command.set_defaults(run=run)
        return command

    score = add("score", jobs.score, "score the responses of a JSONL file and wait for it")
    score.add_argument("file", help="a .jsonl, .jsonl.gz or .jsonl.zst file, or - for stdin")
    score.add_argument(
        "--scorer",
        action="append",
        type=_checked(scorers.parse),
        required=True,
        metavar="NAME[:OPTION=VALUE...]",
        help="a rule scorer, e.g. numeric_match, format:tags=think,answer:weight=0.5; may be given again",
    )
    _request(score)
    _output(score)
    submit = add("submit", jobs.submit, "submit a job of any kind and print its id")
    submit.add_argument("kind", help="score, judge, inference, simulated, ...")
    submit.add_argument("file", help="a .jsonl, .jsonl.gz or .jsonl.zst file, or - for stdin")
    _request(submit)
    submit.add_argument("--wait", action="store_true", help="wait for the end")
    _output(submit)
    for name, run, check, flags, about in (
        ("infer", inference.infer, inference.check_infer, inference_flags.add_infer,
         "answer the rows of a contexts file, in order"),
        ("contexts", inference.contexts, inference.check_contexts, inference_flags.add_contexts,
         "find a context for each question, by API name or by similarity"),
        ("pipeline", inference.pipeline, inference.check_pipeline, inference_flags.add_pipeline,
         "find contexts for questions and answer them: `contexts`, then `infer`"),
    ):  # fmt: skip
        command = add(name, run, about)
        command.set_defaults(check=check)
        flags(command)
    status = add("status", jobs.status, "show a job, or list jobs")
    status.add_argument("job", nargs="?", help="a job's id; without it, the newest jobs are listed")
    status.add_argument("--kind", default="", help="list only this kind")
    status.add_argument("--state", default="", help="list only this state")
    status.add_argument("--limit", type=int, default=20, help="list at most so many (20)")
    watch = add("watch", jobs.watch, "wait for a job, with its progress on a terminal")
    watch.add_argument("job")
    _timeout(watch)
    results = add("results", jobs.results, "the rows of a job, in input order, once it has ended")
    results.add_argument("job")
    _output(results)
    results.add_argument("--start", type=int, default=0, help="first index")
    results.add_argument("--limit", type=int, help="at most so many rows")
    results.add_argument("--now", action="store_true", help="do not wait: the rows there are now")
    calibration = add("calibration", jobs.calibration, "compare a judge job's scores with the labels of its items")
    calibration.add_argument("job")
    for name, run, about in (
        ("cancel", jobs.cancel, "cancel jobs; items that have an outcome keep it"),
        ("retry", jobs.retry, "run the failed items of jobs again"),
    ):
        add(name, run, about).add_argument("jobs", nargs="+", metavar="job")
    add("queues", fleet.queues, "the queues, what waits in them and who reads them")
    add("devices", fleet.devices, "the device slots and what they hold")
    add("workers", fleet.workers, "the worker processes")
    add("policies", fleet.policies, "the robot policy servers, and what they are doing")
    add("benchmarks", benchmarks.listing, "what the server can measure of itself, when it does, and what has got worse")
    benchmark = add("benchmark", benchmarks.run, "run a benchmark now, wait for it, and write its report to a folder")
    benchmark.add_argument("name", help="quick, full, or one scenario; `assay benchmarks` lists them")
    benchmark.add_argument("-o", "--output", metavar="FOLDER", help="of the report (benchmark_results_<time>)")
    benchmark.add_argument("--repetitions", type=int, metavar="N", help="times each case is measured")
    benchmark.add_argument("--size", choices=("quick", "full"), help="of a single scenario's cases")
    benchmark.add_argument("--profile", help="the API that judges; another than the development API may cost")
    benchmark.add_argument("--model", help="a model that generates in rollouts, instead of a simulated engine")
    doctor = add("doctor", checkup.doctor, "check a deployment and say what to fix")
    doctor.add_argument("--checkout", default=".", help="folder of a server checkout, to check this host too (.)")
    shell = add("completion", lambda session: completion.command(session, build()), "print a shell's completion script")
    shell.add_argument("shell", choices=completion.SHELLS)
    return parser


def _shared() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--url", help="the server; overrides ASSAY_URL")
    shared.add_argument("--json", action="store_true", help="JSON on stdout, for scripts")
    shared.add_argument(
        "--retry-for", type=float, default=120.0, metavar="S", help="seconds a lost server is tried for (120)"
    )
    return shared


def _request(command: argparse.ArgumentParser) -> None:
    command.add_argument("--spec", type=_checked(_object), metavar="JSON|@FILE", help="the kind's own settings")
    command.add_argument("--priority", choices=("interactive", "normal", "bulk"), default="normal")
    command.add_argument("--cache", choices=("use", "refresh", "off"), default="use")
    command.add_argument(
        "--on-error", type=_checked(_on_error), metavar="null|fail|NUMBER", help="the score of a failed item (null)"
    )
    command.add_argument("--deadline-s", type=float, metavar="S", help="seconds after which the job ends as it is")
    command.add_argument("--max-failed-share", type=float, metavar="0..1", help="the job fails above this share")
    command.add_argument("--slots", type=int, metavar="N", help="device slots that may work on it, at most")
    command.add_argument("--metadata", type=_checked(_object), metavar="JSON|@FILE", help="kept with the job")
    command.add_argument("--key", help="idempotency key: the same key is the same job")


def _output(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", metavar="FILE", help="write the rows here as JSONL; - is stdout")
    _timeout(command)


def _timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument("--timeout", type=float, metavar="S", help="seconds to wait; the job goes on after that")


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser whose own words reach the user; argparse drops those of a ValueError."""

    def checked(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, OSError) as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error

    return checked


def _object(text: str) -> dict[str, Any]:
    if text.startswith("@"):
        with open(text[1:], encoding="utf-8") as file:
            text = file.read()
    data = json.loads(text)
    if not isinstance(data, dict):
        raise ValueError("this must be a JSON object")
    return data


def _on_error(text: str) -> str | dict[str, float]:
    return text if text in ("null", "fail") else {"fill": float(text)}
