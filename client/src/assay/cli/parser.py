"""Argument parser of `assay`: the commands and their options."""

from __future__ import annotations

import argparse
import json
from typing import Any, Callable

from assay.cli import benchmarks, completion, doctor, fleet, inference, inference_flags, jobs, scorers
from assay.cli.session import Session
from assay.version import VERSION

Command = Callable[[Session], int]


def build() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="assay",
        description="Score, judge and infer on an Assay server.",
        epilog="Environment: ASSAY_URL is the server's URL (http://127.0.0.1:6006), ASSAY_TOKEN the token. "
        "Exit codes: 0 success, 1 the job or items of it failed, 2 wrong usage, 3 no connection, "
        "4 the server responded with an error, 5 --timeout expired, 130 Ctrl-C (which cancels nothing).",
    )
    parser.add_argument("--version", action="version", version=f"assay-client {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    shared = _shared()

    def add(name: str, run: Command, description: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=description, description=description, parents=[shared])
        command.set_defaults(run=run)
        return command

    score = add("score", jobs.score, "score the responses of a JSONL file and wait for the result")
    score.add_argument("file", metavar="FILE", help="a .jsonl, .jsonl.gz or .jsonl.zst file, or - for stdin")
    score.add_argument(
        "--scorer",
        action="append",
        type=_checked(scorers.parse),
        required=True,
        metavar="NAME[:OPTION=VALUE...]",
        help="a rule scorer, e.g. numeric_match or format:tags=think,answer:weight=0.5; can be repeated",
    )
    _request(score)
    _output(score)
    submit = add("submit", jobs.submit, "submit a job of any kind and print its id")
    submit.add_argument("kind", help="kind of the job: score, judge, inference, simulated, ...")
    submit.add_argument("file", metavar="FILE", help="a .jsonl, .jsonl.gz or .jsonl.zst file, or - for stdin")
    _request(submit)
    submit.add_argument("--wait", action="store_true", help="wait until the job has ended")
    _output(submit)
    infer = add("infer", inference.infer, "answer the rows of a contexts file, in input order")
    infer.set_defaults(check=inference.check_infer)
    inference_flags.add_infer(infer)
    contexts = add("contexts", inference.contexts, "find a context for each question, by API name or by similarity")
    contexts.set_defaults(check=inference.check_contexts)
    inference_flags.add_contexts(contexts)
    pipeline_help = "find contexts for questions and answer them: `contexts`, then `infer`"
    pipeline = add("pipeline", inference.pipeline, pipeline_help)
    pipeline.set_defaults(check=inference.check_pipeline)
    inference_flags.add_pipeline(pipeline)
    status = add("status", jobs.status, "show a job, or list jobs")
    status.add_argument("job", nargs="?", help="id of the job; without it, the newest jobs are listed")
    status.add_argument("--kind", default="", help="list only jobs of this kind")
    status.add_argument("--state", default="", help="list only jobs in this state")
    status.add_argument("--limit", type=int, default=20, help="maximum number of listed jobs (20)")
    watch = add("watch", jobs.watch, "wait for a job; shows its progress on a terminal")
    watch.add_argument("job", help="id of the job")
    _timeout(watch)
    results = add("results", jobs.results, "print or save the rows of a job in input order, once the job has ended")
    results.add_argument("job", help="id of the job")
    _output(results)
    results.add_argument("--start", type=int, default=0, help="index of the first row (0)")
    results.add_argument("--limit", type=int, help="maximum number of rows")
    results.add_argument("--now", action="store_true", help="do not wait: only the rows that exist now")
    calibration = add("calibration", jobs.calibration, "compare a judge job's scores with the labels of its items")
    calibration.add_argument("job", help="id of the job")
    cancel = add("cancel", jobs.cancel, "cancel jobs; items that already have an outcome keep it")
    cancel.add_argument("jobs", nargs="+", metavar="job", help="id of a job")
    cancel.add_argument("--purge", action="store_true", help="also delete the jobs with their results")
    retry = add("retry", jobs.retry, "run the failed items of jobs again")
    retry.add_argument("jobs", nargs="+", metavar="job", help="id of a job")
    add("queues", fleet.queues, "list the queues, with their waiting messages and their workers")
    add("devices", fleet.devices, "list the device slots, with their state and loaded models")
    add("workers", fleet.workers, "list the worker processes")
    add("policies", fleet.policies, "list the robot policy servers, with their state, calls and latency")
    benchmarks_help = "list the server's benchmarks, with their schedule, last run and regressions"
    add("benchmarks", benchmarks.listing, benchmarks_help)
    benchmark = add("benchmark", benchmarks.run, "run a benchmark now, wait for it, and write its report to a folder")
    benchmark.add_argument("name", help="quick, full, or the name of a scenario; `assay benchmarks` lists them")
    benchmark.add_argument("-o", "--output", metavar="FOLDER", help="folder of the report (benchmark_results_<time>)")
    benchmark.add_argument("--repetitions", type=int, metavar="N", help="number of measurements of each case")
    benchmark.add_argument("--size", choices=("quick", "full"), help="size of the cases of a single scenario")
    benchmark.add_argument(
        "--profile", help="API profile of the judge; any profile except the development API may cost money"
    )
    benchmark.add_argument("--model", help="model that generates in rollouts, instead of a simulated engine")
    checks = add("doctor", doctor.doctor, "check a deployment and print a fix for each problem")
    checks.add_argument(
        "--checkout", default=".", metavar="FOLDER", help="folder of a server checkout, to also check this host (.)"
    )
    checks.add_argument("--repair", metavar="JOB", help="instead, repair a job that stands still")
    shell = add("completion", lambda session: completion.command(session, build()), "print a shell completion script")
    shell.add_argument("shell", choices=completion.SHELLS)
    return parser


def _shared() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--url", help="URL of the server; overrides ASSAY_URL")
    shared.add_argument("--json", action="store_true", help="print JSON to stdout, for scripts")
    shared.add_argument(
        "--retry-for", type=float, default=120.0, metavar="S", help="seconds to retry after a lost connection (120)"
    )
    return shared


def _request(command: argparse.ArgumentParser) -> None:
    command.add_argument("--spec", type=_checked(_object), metavar="JSON|@FILE", help="settings of the job's kind")
    command.add_argument("--priority", choices=("interactive", "normal", "bulk"), default="normal")
    command.add_argument("--cache", choices=("use", "refresh", "off"), default="use")
    command.add_argument(
        "--on-error", type=_checked(_on_error), metavar="null|fail|NUMBER", help="the score of a failed item (null)"
    )
    command.add_argument("--deadline-s", type=float, metavar="S", help="seconds after which unfinished items time out")
    command.add_argument(
        "--max-failed-share", type=float, metavar="0..1", help="share of failed items above which the job fails"
    )
    command.add_argument("--slots", type=int, metavar="N", help="maximum number of device slots for the job")
    command.add_argument(
        "--metadata", type=_checked(_object), metavar="JSON|@FILE", help="metadata stored with the job"
    )
    command.add_argument("--key", help="idempotency key: a submit with the same key returns the same job")


def _output(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", metavar="FILE", help="write the rows to this file as JSONL; - is stdout")
    _timeout(command)


def _timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument("--timeout", type=float, metavar="S", help="seconds to wait; the job keeps running after that")


def _checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a parser so that argparse prints its error message; argparse drops the message of a ValueError."""

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
        raise ValueError("the value must be a JSON object")
    return data


def _on_error(text: str) -> str | dict[str, float]:
    return text if text in ("null", "fail") else {"fill": float(text)}
