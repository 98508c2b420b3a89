"""Instructions scored by a robot policy: one, several at a time, and on a server elsewhere. Standard library only.

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

#: What a policy is told, and the task it is told it for. The last is told the wrong thing.
ASKED = [("reach the red target", 0), ("reach the green target", 1), ("reach the blue target", 2), ("go home", 3)]


def call(url: str, path: str, body: object = None) -> bytes:
    """An answer of the server; a refusal ends the program with what it says."""
    token = os.environ.get("ASSAY_TOKEN")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = Request(url + path, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=1800) as reply:  # episodes take long
            return bytes(reply.read())
    except HTTPError as error:
        raise SystemExit(f"{url}{path} refuses: {json.loads(error.read()).get('detail')} [{error.code}]") from error
    except URLError as error:
        raise SystemExit(f"{url} does not answer ({error.reason}): is it up, and is --url right?") from error


def score(url: str, asked: list[tuple[str, int]], trials: int, max_workers: int) -> bool:
    """Print a line for each instruction; whether all could be scored."""
    options = {"num_trials_per_task": trials, "max_workers": max_workers, "cache": "off"}
    metas = [{"task_id": task} for _, task in asked]
    began = time.monotonic()
    body = {"responses": [text for text, _ in asked], "metas": metas, "reward_function_kwargs": options}
    told: dict[str, Any] = json.loads(call(url, "/score", body))
    for (text, task), rate, error in zip(asked, told["done_result"], told["errors"], strict=True):
        bar = "not scored" if rate is None else "#" * round(10 * rate) + "." * (10 - round(10 * rate))
        print(f"  {bar}  {'' if rate is None else f'{rate:4.0%}'}  task {task}: {text}")
        if error:  # no failure of the policy: the episodes could not run
            print(f"              {error['type']}: {error['message']}")
    print(f"  {trials * len(asked)} episodes in {time.monotonic() - began:.1f} s; {url}/v1/jobs/{told['job']}/results")
    print("".join(f"  note: {note}\n" for note in told["notes"]))
    return all(told["valid"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=["single", "parallel"], help="single, parallel, remote")
    parser.add_argument("--url", default=os.environ.get("ASSAY_URL", "http://127.0.0.1:6006"))
    parser.add_argument("--trials", type=int, default=5, help="episodes for each instruction")
    options = parser.parse_args()
    if wrong := set(options.runs) - {"single", "parallel", "remote"}:
        parser.error(f"there is no run {wrong.pop()!r}: single, parallel, remote")
    url = options.url.rstrip("/")
    pool = json.loads(call(url, "/pool_status"))
    print(f"{url}: {pool['connected']} of {pool['total_clients']} policy servers connected, {pool['busy']} busy\n")
    fine = True
    for run in options.runs:
        began = time.monotonic()
        if run == "remote":
            print(f"remote: /health says {call(url, '/health').decode()} in {1000 * (time.monotonic() - began):.0f} ms")
        else:
            print(f"{run}:")
        asked, workers = (ASKED, max(1, pool["total_clients"])) if run == "parallel" else (ASKED[:1], 1)
        fine = score(url, asked, options.trials, workers) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
