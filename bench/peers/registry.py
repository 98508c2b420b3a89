"""The peers by name. A module is imported only in its peer's own process: its package may not be installed."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from bench.peers.peer import Peer
from bench.peers.questions import Question, make_questions
from bench.peers.rows import make_rows


@dataclass(frozen=True, slots=True)
class Entry:
    title: str
    module: str
    name: str
    """Of the class."""
    package: str = ""
    """What it needs beyond requirements/dev.txt; requirements/peers.txt has it."""

    @property
    def is_installed(self) -> bool:
        return not self.package or importlib.util.find_spec(self.package) is not None

    def load(self) -> type[Peer]:
        found: type[Peer] = getattr(importlib.import_module(f"bench.peers.{self.module}"), self.name)
        return found


#: In the order of the table.
JUDGES = {
    "assay": Entry("Assay", "assay_jobs", "AssayJobs"),
    "celery": Entry("Celery", "celery_tasks", "CeleryTasks"),
    "rq": Entry("RQ", "rq_jobs", "RqJobs", "rq"),
    "dramatiq": Entry("Dramatiq", "dramatiq_actors", "DramatiqActors", "dramatiq"),
    "multiprocessing": Entry("multiprocessing workers", "multiprocessing_workers", "MultiprocessingWorkers"),
    "threads": Entry("ThreadPoolExecutor", "thread_pool", "ThreadPool"),
    "asyncio": Entry("plain asyncio", "plain_asyncio", "PlainAsyncio"),
}
GENERATORS = {
    "assay-inference": Entry("Assay, inference job", "assay_inference", "AssayInference"),
    "one-by-one": Entry("transformers, one by one", "transformers_one_by_one", "TransformersOneByOne"),
    "static-split": Entry("transformers, batches of 8 in a static split by torchrun", "static_split", "StaticSplit"),
}
PEERS = JUDGES | GENERATORS


def maker(name: str) -> Callable[[int, int, float], list[Question]]:
    """Of what a peer is asked: the first number, how many, and the share of repetitions."""
    return make_questions if name in JUDGES else make_rows
