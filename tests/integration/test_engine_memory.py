"""An engine's memory is bounded, although every batch has another shape."""

import json
import os
import subprocess
import sys
from pathlib import Path

from config.queues import Slot
from tests import tiny_models
from tests.conftest import ROOT
from workers.devices import PinnedSlot

#: Thirty batches of up to 64 rows, five times, with longer prompts each time: shapes that were never met before. Then
#: what the process held after each time, in MB.
BATCHES = """
import json, random, sys
from pathlib import Path
import psutil
from tasks.inference.engine import GenerateRequest, ModelRef, Sampling
from workers.engines.engine import EngineOptions, TransformersEngine

engine = TransformersEngine(EngineOptions({"tiny": Path(sys.argv[1])}))
chance = random.Random(1)

def work(length):
    for _ in range(30):
        asked = [chance.randbytes(length // 2).hex() for _ in range(chance.randint(1, 64))]
        engine.generate(ModelRef("tiny"), [GenerateRequest(each, Sampling(max_new_tokens=6)) for each in asked])
    return psutil.Process().memory_info().rss / (1 << 20)

print(json.dumps([work(length) for length in (80, 20, 36, 52, 68)]))
"""


def test_batches_of_ever_new_shapes_take_no_more_memory(tmp_path: Path) -> None:
    model = tiny_models.write(tmp_path / "tiny")
    argv = [sys.executable, "-W", "ignore", "-c", BATCHES, str(model)]
    slot = PinnedSlot(Slot("node1", 0), devices=(), threads=1)
    environment = os.environ | slot.environment() | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    first, *later = json.loads(run.stdout)
    assert max(later) - first < 30, (first, later)
