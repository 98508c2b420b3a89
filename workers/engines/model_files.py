"""Finds a model's files: in the default stack, in a directory, or on the hub. Errors name the missing file."""

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
#: Patterns of the files to download from a hub repository: no pickles, and no weights of other frameworks.
HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


@dataclass(frozen=True, slots=True)
class ModelFiles:
    folder: Path
    gguf: str
    """Name of the GGUF file that holds the weights; empty for an ordinary directory."""
    version: str


class ModelFinder:
    def __init__(self, named: Mapping[str, Path], offline: bool = True, hub_cache: Path | None = None) -> None:
        """`named`: folders of the default stack. `offline`: never contact the hub, use earlier downloads only."""
        self._named = named
        self._offline = offline
        self._hub_cache = hub_cache

    def find(self, ref: ModelRef) -> ModelFiles:
        folder = self._folder(ref)
        if folder.is_dir():
            gguf = _require_model(folder, ref.file)
            return ModelFiles(folder, gguf, fingerprint(folder) or "")
        if ref.name in self._named:
            raise ModelMissing(f"{ref.name} is not prepared yet: run `python -m workers.engines.default_models`")
        if folder.exists():
            raise ModelMissing(f"no such directory: {ref.name} is a file; name the directory that contains it")
        if not HUB_ID.fullmatch(ref.name):
            raise ModelMissing(f"no such directory: {ref.name}")
        if not COMMIT.fullmatch(ref.revision):
            raise ModelMissing(
                f"no such directory: {ref.name}. If it is a hub id, it needs a `revision`: the commit's 40 hex digits"
            )
        folder = self._download(ref)
        return ModelFiles(folder, _require_model(folder, ref.file), ref.revision)

    def has_changed(self, ref: ModelRef, version: str) -> bool:
        """Return whether the files differ from this version. The files of a hub commit never change."""
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
                    f"not downloaded: {ref.name} at {ref.revision}, and this worker does not contact the hub"
                ) from error
            raise HubUnavailable(f"The download of {ref.name} from the hub failed: {error}") from error


def _require_model(folder: Path, file: str) -> str:
    """Return the name of a directory's GGUF file, or an empty string for an ordinary directory. Raises NotAModel."""
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if file and file not in ggufs:
        raise NotAModel(f"not a model: {folder} has no file {file}")
    if file:
        return file
    if not (folder / "config.json").is_file():
        if len(ggufs) == 1:
            return ggufs[0]
        if ggufs:
            raise NotAModel(
                f"not a model by itself: {folder} has several GGUF files; set `file` to: {', '.join(ggufs)}"
            )
        raise NotAModel(f"not a model: config.json missing in {folder}")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise NotAModel(f"not a model: weights missing in {folder} (*.safetensors)")
    return ""
