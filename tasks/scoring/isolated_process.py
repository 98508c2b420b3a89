"""Child process that runs isolated scorers: a JSON request per line in, a JSON answer per line out. See isolation.py.

The kernel ends the process when a scorer exceeds its limit: a timer signal without a handler needs no cooperation, not
even from arithmetic that never returns to the interpreter.
"""

import json
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

from tasks.errors import CannotJudge
from tasks.scoring import registry
from tasks.scoring.scorer import Options, Sample, Scorer

#: Memory limit of a scorer in bytes: it gets a MemoryError before the host starts to swap.
MOST_MEMORY = 4 * 2**30
#: Ratio of the wall-clock limit of a scorer to its CPU limit.
WALL_CLOCK_FACTOR = 3


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # redirect prints of a scorer to stderr: they must not mix with the answers
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the process exits with its worker, at the end of its input
        signal.signal(ignored, signal.SIG_IGN)
    for deadly in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(deadly, signal.SIG_DFL)
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    registry.scorers()
    print("ready", file=answers, flush=True)
    for line in sys.stdin.buffer:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    limit_s = request["limit_s"]
    try:
        scorer, options = _load(request["scorer"], request["options"])
        sample = Sample(**request["sample"] | {"references": tuple(request["sample"]["references"])})
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        signal.setitimer(signal.ITIMER_REAL, WALL_CLOCK_FACTOR * limit_s)
        return {"score": float(scorer.score(sample, options))}
    except CannotJudge as error:
        return {"reason": error.reason, "message": str(error)}
    except Exception as error:  # noqa: BLE001  # any error of a scorer becomes the item's outcome
        return {"reason": "scorer_failed", "message": f"{type(error).__name__}: {error}"[:1000]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


@lru_cache(maxsize=256)
def _load(name: str, options: str) -> tuple[Scorer[Any], Options]:
    scorer = registry.find(name)
    assert isinstance(scorer, Scorer), "model scorers run on device workers"
    return scorer, scorer.options.model_validate_json(options)


if __name__ == "__main__":
    main()
