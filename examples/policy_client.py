"""Score instructions with a robot policy: a single instruction, several in parallel, or on a remote server. Uses only
the standard library.

Run: python examples/policy_client.py                 (the single and the parallel run, on this machine)
     ASSAY_TOKEN=... python examples/policy_client.py remote --url https://gpu1.example.org
"""

import argparse
import json
import os
import time
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

#: Instructions with their tasks. The last instruction is wrong for its task.
INSTRUCTIONS = [
    ("reach the red target", 0),
    ("reach the green target", 1),
    ("reach the blue target", 2),
    ("go home", 3),
]


def call(url: str, path: str, body: object = None) -> bytes:
    """Send a request and return the body of the response; exit with a message if the server responds with an error."""
    token = os.environ.get("ASSAY_TOKEN")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = Request(url + path, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=1800) as reply:  # episodes take minutes
            return bytes(reply.read())
    except HTTPError as error:
        detail = json.loads(error.read()).get("detail")
        raise SystemExit(f"{url}{path} responds with an error: {detail} [{error.code}]") from error
    except URLError as error:
        raise SystemExit(f"{url} does not respond ({error.reason}): start the server, or correct --url") from error


def score(url: str, instructions: list[tuple[str, int]], trials: int, max_workers: int) -> bool:
    """Print a line for each instruction. Return whether every instruction could be scored."""
    options = {"num_trials_per_task": trials, "max_workers": max_workers, "cache": "off"}
    metas = [{"task_id": task} for _, task in instructions]
    began = time.monotonic()
    body = {"responses": [text for text, _ in instructions], "metas": metas, "reward_function_kwargs": options}
    result: dict[str, Any] = json.loads(call(url, "/score", body))
    for (text, task), rate, error in zip(instructions, result["done_result"], result["errors"], strict=True):
        bar = "not scored" if rate is None else "#" * round(10 * rate) + "." * (10 - round(10 * rate))
        print(f"  {bar}  {'' if rate is None else f'{rate:4.0%}'}  task {task}: {text}")
        if error:  # not a failure of the policy: the episodes could not run
            print(f"              {error['type']}: {error['message']}")
    seconds, job_url = time.monotonic() - began, f"{url}/v1/jobs/{result['job']}/results"
    print(f"  {trials * len(instructions)} episodes in {seconds:.1f} s; {job_url}")
    print("".join(f"  note: {note}\n" for note in result["notes"]))
    return all(result["valid"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["single", "parallel"], help="single, parallel, remote")
    parser.add_argument("--url", default=os.environ.get("ASSAY_URL", "http://127.0.0.1:6006"))
    parser.add_argument("--trials", type=int, default=5, help="episodes for each instruction")
    options = parser.parse_args()
    if unknown := set(options.runs) - {"single", "parallel", "remote"}:
        parser.error(f"unknown run {unknown.pop()!r}: choose single, parallel or remote")
    url = options.url.rstrip("/")
    pool = json.loads(call(url, "/pool_status"))
    print(f"{url}: {pool['connected']} of {pool['total_clients']} policy servers connected, {pool['busy']} busy\n")
    succeeded = True
    for run in options.runs:
        began = time.monotonic()
        if run == "remote":
            health = call(url, "/health").decode()
            print(f"remote: /health responds {health} in {1000 * (time.monotonic() - began):.0f} ms")
        else:
            print(f"{run}:")
        is_parallel = run == "parallel"
        instructions = INSTRUCTIONS if is_parallel else INSTRUCTIONS[:1]
        workers = max(1, pool["total_clients"]) if is_parallel else 1
        succeeded = score(url, instructions, options.trials, workers) and succeeded
    return 0 if succeeded else 1


if __name__ == "__main__":
    raise SystemExit(main())
