"""The child process in which isolated scorers run: one request a line, one answer a line. Started by isolation.py.

The kernel ends it when a scorer takes too long: a timer whose signal has no handler needs no cooperation, not even from
arithmetic that never returns to the interpreter.
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

#: Memory a scorer may use, in bytes; beyond it there is a MemoryError instead of a host that swaps.
MOST_MEMORY = 4 * 2**30
#: How much longer than its computing time a scorer may take by the clock.
PATIENCE = 3


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a scorer prints goes to the log, not among the answers
    for ignored in (signal.SIGINT, signal.SIGTERM):  # it ends when its worker does, by the end of its input
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
        signal.setitimer(signal.ITIMER_REAL, PATIENCE * limit_s)
        return {"score": float(scorer.judge(sample, options))}
    except CannotJudge as error:
        return {"reason": error.reason, "message": str(error)}
    except Exception as error:  # noqa: BLE001  # whatever goes wrong in a scorer is the item's outcome
        return {"reason": "scorer_failed", "message": f"{type(error).__name__}: {error}"[:1000]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


@lru_cache(maxsize=256)
def _load(name: str, options: str) -> tuple[Scorer[Any], Options]:
    scorer = registry.find(name)
    assert isinstance(scorer, Scorer), "measures run where the models are"
    return scorer, scorer.options.model_validate_json(options)


if __name__ == "__main__":
    main()
