"""An engine's memory is bounded, although every batch has another shape."""

import json
import os
import subprocess
import sys
from pathlib import Path

from config.queues import Slot
from tests.conftest import ROOT
from tests.support import tiny_models
from workers.devices.discovery import PinnedSlot

#: Thirty batches of up to 64 rows, five times, with prompts of another length each time: shapes that were never met
#: before. Then what the process held after each time, in MB.
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


def _run(program: str, *arguments: str) -> str:
    """In a process of its own, as a device slot of one thread."""
    environment = os.environ | PinnedSlot(Slot("node1", 0), devices=(), threads=1).environment()
    argv = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    run = subprocess.run(argv, capture_output=True, text=True, env=environment | {"PYTHONPATH": str(ROOT)}, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def test_batches_of_ever_new_shapes_take_no_more_memory(tmp_path: Path) -> None:
    first, *later = json.loads(_run(BATCHES, str(tiny_models.write(tmp_path / "tiny"))))
    assert max(later) - first < 50, (first, later)


#: Half a gigabyte in small pieces, every tenth is kept; then what the process holds of it before and after, in MB.
HOLES = """
import json, psutil, torch
from workers.engines.memory import trim_heap

rss = lambda: psutil.Process().memory_info().rss / (1 << 20)
empty = rss()
kept = [torch.ones(1 << 14) for _ in range(8000)][::10]
print(json.dumps([rss() - empty, trim_heap(), rss() - empty]))
"""


def test_memory_between_what_is_kept_is_given_back() -> None:
    before, _, after = json.loads(_run(HOLES))
    assert before > 400
    assert after < 150
