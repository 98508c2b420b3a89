"""Layout of a job: where its items are stored, and how rows of the ledger map to items.

- Small jobs: blocks of items in a Redis hash.
- Stored jobs: a JSONL file in a folder of the storage. Outcomes move to files there too, part by part.
- Trials: an item is run several times, and each trial is a row (see `trials.py`).
- Loops: the items of a rollout are its prompts, epoch after epoch (see `prompt_loop.py`). The prompts are stored like
  the items of a small job or of a stored job.

The ledger keeps a layout as JSON with the fields that apply, and as an empty text if none does.
"""

import json
from dataclasses import dataclass
from functools import lru_cache

from tasks.jobs.state.prompt_loop import PromptLoop


@dataclass(frozen=True, slots=True)
class Layout:
    folder: str = ""
    """Folder of the storage that has the items; empty: they are in Redis."""
    trials: int = 1
    """Rows of the ledger per item."""
    loop: PromptLoop | None = None
    """Prompts that are repeated, for a rollout."""

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Parse a layout that `str` serialized."""
        return _parse(text)

    def __str__(self) -> str:
        fields: dict[str, object] = {}
        if self.folder:
            fields["folder"] = self.folder
        if self.trials > 1:
            fields["trials"] = self.trials
        if self.loop:
            fields["prompts"] = self.loop.prompts
            if self.loop.seed is not None:
                fields["seed"] = self.loop.seed
        return json.dumps(fields, separators=(",", ":")) if fields else ""

    @property
    def is_stored(self) -> bool:
        """Whether items and outcomes are in files. The prompts of a rollout may be in a file too, but its outcomes are
        not."""
        return bool(self.folder) and self.loop is None

    @property
    def of_prompts(self) -> "Layout":
        """Return the layout of a loop's prompts; for a job without a loop, this layout."""
        return Layout(self.folder, self.trials) if self.loop else self

    def folder_of(self, job_id: str) -> str:
        """Return the folder of the job's files. The folder of a stored job is created before the job has an id, so its
        name is not the job id."""
        return self.folder if self.is_stored else job_id


@lru_cache(maxsize=1024)
def _parse(text: str) -> Layout:
    if not text:
        return Layout()
    fields = json.loads(text)
    loop = PromptLoop(fields["prompts"], fields.get("seed")) if "prompts" in fields else None
    return Layout(fields.get("folder", ""), fields.get("trials", 1), loop)
