"""An engine's memory is bounded, although every batch has a different shape."""

import json
import os
import subprocess
import sys
from pathlib import Path

from config.queues import Slot
from tests.conftest import ROOT
from tests.support import tiny_models
from workers.devices.discovery import PinnedSlot

#: Program that runs thirty batches of up to 64 rows five times, each time with prompts of a new length and
#: therefore of new shapes. It prints the memory of the process after each round, in MB.
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
    """Run the program in a separate process with a single thread, like a device slot."""
    environment = os.environ | PinnedSlot(Slot("node1", 0), devices=(), threads=1).environment()
    argv = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    run = subprocess.run(argv, capture_output=True, text=True, env=environment | {"PYTHONPATH": str(ROOT)}, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def test_batches_of_new_shapes_do_not_increase_the_memory(tmp_path: Path) -> None:
    first, *later = json.loads(_run(BATCHES, str(tiny_models.write(tmp_path / "tiny"))))
    assert max(later) - first < 50, (first, later)


#: Program that allocates 0.5 GB in small pieces and keeps every tenth. It prints memory before and after a trim, in MB.
HOLES = """
import json, psutil, torch
from workers.engines.memory import trim_heap

rss = lambda: psutil.Process().memory_info().rss / (1 << 20)
empty = rss()
kept = [torch.ones(1 << 14) for _ in range(8000)][::10]
print(json.dumps([rss() - empty, trim_heap(), rss() - empty]))
"""


def test_trimming_returns_free_memory_between_kept_pieces() -> None:
    before, _, after = json.loads(_run(HOLES))
    assert before > 400
    assert after < 150
