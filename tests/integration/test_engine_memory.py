"""An engine's memory grows no more once it has met every shape of batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import tiny_models
from tests.conftest import ROOT

#: A hundred batches of all sizes up to 40, four times the same; then what the process held after each time, in MB.
#: In a process of its own, with one thread, as device slots on a CPU have it.
BATCHES = """
import json, random, sys
from pathlib import Path
import psutil
from tasks.inference.engine import GenerateRequest, ModelRef, Sampling
from workers.engines.engine import EngineOptions, TransformersEngine

engine = TransformersEngine(EngineOptions({"tiny": Path(sys.argv[1])}))

def work():
    chance = random.Random(1)
    for _ in range(100):
        sums = [f"{chance.randrange(20)}+{chance.randrange(20)}=" for _ in range(chance.randint(1, 40))]
        engine.generate(ModelRef("tiny"), [GenerateRequest(each, Sampling(max_new_tokens=6)) for each in sums])
    return psutil.Process().memory_info().rss / (1 << 20)

print(json.dumps([work() for _ in range(4)]))
"""


def test_the_same_batches_again_take_no_more_memory(tmp_path: Path) -> None:
    model = tiny_models.write(tmp_path / "tiny")
    argv = [sys.executable, "-W", "ignore", "-c", BATCHES, str(model)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    first, *again = json.loads(run.stdout)
    assert max(again) - first < 15, (first, again)
