"""Resolution of model names to models, and the identity of a model. Loads no weights: the web process has no torch.

A local model is a folder of `ASSAY_MODELS_DIR`, by its name, or a path below a folder of `ASSAY_MODEL_PATHS`; a hub
model is `owner/name@<commit>`.
"""

import re
from pathlib import Path

from tasks.errors import InvalidRequest
from tasks.inference.engine import ModelRef
from tasks.inference.fingerprint import fingerprint
from tasks.inference.model import InferenceSpec

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HUB = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})@([0-9a-f]{40})")


class Models:
    def __init__(self, folder: Path, paths: str = "") -> None:
        self._folder = folder
        self._paths = [Path(each.strip()).resolve() for each in paths.split(",") if each.strip()]

    def names(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob("*") if _is_model(path))

    def find(self, spec: InferenceSpec) -> ModelRef:
        """Return the model of a spec. Raises InvalidRequest for a model that is unknown or not allowed.

        Does not check that the model can be loaded: the engine does.
        """
        if spec.backend == "huggingface":
            return self._on_hub(spec.model)
        return self.local(spec.model or self._default(spec.task))

    def _default(self, task: str) -> str:
        """Return the model that comes with Assay, or the only model of the folder."""
        names = self.names()
        usual = "minilm" if task == "embed" else "smollm2"
        return usual if usual in names or len(names) != 1 else names[0]

    def local(self, name: str, field: str = "spec.model") -> ModelRef:
        """Return a model on this machine. `field` is the request's field with the name, for the error."""
        try:
            return self._local(name)
        except InvalidRequest as error:
            raise InvalidRequest(f"{field}: {error}", field=field) from error

    def _local(self, name: str) -> ModelRef:
        if _NAME.fullmatch(name):
            if (path := self._folder.absolute() / name).is_dir():  # not resolved: jobs know a link by its name
                return _required(path, name)
            known = ", ".join(self.names())
            remedy = f"use {known}" if known else "put a model's folder into ASSAY_MODELS_DIR"
            raise _refused(f"unknown model {name!r}: {remedy}")
        path = Path(name).resolve()
        if not name or not any(path.is_relative_to(each) for each in self._paths):
            raise _refused(
                f"{name[:200]!r} is neither a model's name nor a path allowed by ASSAY_MODEL_PATHS"
                if name
                else "no model is named, and ASSAY_MODELS_DIR has no default: set `model`"
            )
        if not path.is_dir():
            raise _refused(f"no such directory: {name}")
        return _required(path, name)

    def _on_hub(self, name: str) -> ModelRef:
        found = _HUB.fullmatch(name)
        if not found:
            raise _refused(
                f"spec.model: {name[:200]!r} is not a hub id with its commit, owner/name@<40 hex digits>; "
                "a branch is refused, as it may move between two rows"
            )
        return ModelRef(found[1], found[2])


def identity(model: ModelRef) -> str | None:
    """Return an identifier of the model's weights, for cache keys; None when this host cannot read the model."""
    path = Path(model.name)
    return fingerprint(path) if path.is_absolute() else f"{model.name}@{model.revision}"


def _required(path: Path, name: str) -> ModelRef:
    if not _is_model(path):
        raise _refused(f"not a model: config.json missing in {name}")
    return ModelRef(str(path))


def _is_model(path: Path) -> bool:
    return (path / "config.json").is_file() or any(path.glob("*.gguf"))


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(message, field="spec.model")
