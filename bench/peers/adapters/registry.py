"""Registry of the peers. An adapter is imported in the process of its peer only: its package may not be installed."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from bench.peers.adapters.peer import Peer
from bench.peers.workload.inference_rows import make_rows
from bench.peers.workload.judge_questions import Question, make_questions


@dataclass(frozen=True, slots=True)
class Entry:
    """Title and class of a peer."""

    title: str
    module: str
    name: str
    """Name of the class."""
    package: str = ""
    """Required package that is in requirements/peers.txt, but not in requirements/dev.txt."""

    @property
    def is_installed(self) -> bool:
        return not self.package or importlib.util.find_spec(self.package) is not None

    def load(self) -> type[Peer]:
        found: type[Peer] = getattr(importlib.import_module(f"bench.peers.adapters.{self.module}"), self.name)
        return found


#: Peers of the judge workload, in the order of the table.
JUDGES = {
    "assay": Entry("Assay", "assay_judging", "AssayJudging"),
    "celery": Entry("Celery", "celery_tasks", "CeleryTasks"),
    "rq": Entry("RQ", "rq_jobs", "RqJobs", "rq"),
    "dramatiq": Entry("Dramatiq", "dramatiq_actors", "DramatiqActors", "dramatiq"),
    "multiprocessing": Entry("multiprocessing workers", "multiprocessing_workers", "MultiprocessingWorkers"),
    "threads": Entry("ThreadPoolExecutor", "thread_pool", "ThreadPool"),
    "asyncio": Entry("plain asyncio", "plain_asyncio", "PlainAsyncio"),
}
GENERATORS = {
    "assay-inference": Entry("Assay, inference job", "assay_inference", "AssayInference"),
    "one-by-one": Entry("transformers, row by row", "transformers_one_by_one", "TransformersOneByOne"),
    "static-split": Entry(
        "transformers, batches of 8 in a static split by torchrun", "torchrun_static_split", "TorchrunStaticSplit"
    ),
}
PEERS = JUDGES | GENERATORS


def question_generator(name: str) -> Callable[[int, int, float], list[Question]]:
    """Return the generator of a peer's questions. Its arguments: first number, count, and share of repetitions."""
    return make_questions if name in JUDGES else make_rows
