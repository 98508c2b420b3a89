"""Where a model's files are: the default stack, a directory, or the hub. Says plainly what is wrong with them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tasks.errors import HubUnavailable, ModelMissing, NotAModel
from tasks.inference.engine import ModelRef
from tasks.inference.fingerprint import fingerprint

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
COMMIT = re.compile(r"[0-9a-f]{40}")
#: What of a hub repository is downloaded: no pickles, no other frameworks' weights.
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


@dataclass(frozen=True, slots=True)
class Source:
    folder: Path
    gguf: str
    """The file, when the weights are in a GGUF file."""
    version: str


class Sources:
    def __init__(self, named: Mapping[str, Path], offline: bool = True, hub_cache: Path | None = None) -> None:
        """`named`: the models of the default stack. `offline`: the hub is not asked, only what it once gave is used."""
        self._named = named
        self._offline = offline
        self._hub_cache = hub_cache

    def find(self, ref: ModelRef) -> Source:
        folder = self._folder(ref)
        if folder.is_dir():
            gguf = _require_model(folder, ref.file)
            return Source(folder, gguf, fingerprint(folder) or "")
        if ref.name in self._named:
            raise ModelMissing(f"{ref.name} is not prepared yet: run `python -m workers.engines.default_models`")
        if folder.exists():
            raise ModelMissing(f"no such directory: {ref.name} is a file; name the directory that it is in")
        if not HUB_ID.fullmatch(ref.name):
            raise ModelMissing(f"no such directory: {ref.name}")
        if not COMMIT.fullmatch(ref.revision):
            raise ModelMissing(
                f"no such directory: {ref.name}. If it is a hub id, it needs a `revision`: the commit's 40 hex digits"
            )
        folder = self._download(ref)
        return Source(folder, _require_model(folder, ref.file), ref.revision)

    def has_changed(self, ref: ModelRef, version: str) -> bool:
        """Whether there are other files now than those of this version. Those of a hub id's commit never change."""
        return (fingerprint(self._folder(ref)) or version) != version

    def _folder(self, ref: ModelRef) -> Path:
        return self._named.get(ref.name) or Path(ref.name).expanduser()

    def _download(self, ref: ModelRef) -> Path:
        try:
            return Path(
                snapshot_download(
                    ref.name,
                    revision=ref.revision,
                    cache_dir=self._hub_cache,
                    allow_patterns=[*HUB_FILES, *([ref.file] if ref.file else [])],
                    local_files_only=self._offline,
                )
            )
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            raise ModelMissing(f"not on the hub: {ref.name} at {ref.revision}") from error
        except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
            if self._offline:
                raise ModelMissing(
                    f"not downloaded: {ref.name} at {ref.revision}, and this worker does not ask the hub"
                ) from error
            raise HubUnavailable(f"The hub does not give {ref.name}: {error}") from error


def _require_model(folder: Path, file: str) -> str:
    """The GGUF file of a directory, or nothing for an ordinary one. Raises NotAModel."""
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if file and file not in ggufs:
        raise NotAModel(f"not a model: there is no {file} in {folder}")
    if file:
        return file
    if not (folder / "config.json").is_file():
        if len(ggufs) == 1:
            return ggufs[0]
        if ggufs:
            raise NotAModel(f"not a model by itself: {folder} has several GGUF files, name one: {', '.join(ggufs)}")
        raise NotAModel(f"not a model: config.json missing in {folder}")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise NotAModel(f"not a model: weights missing in {folder} (*.safetensors)")
    return ""
