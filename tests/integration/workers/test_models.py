"""Models: found by path, refused with a reason, and kept in memory until they are evicted."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BloomConfig, MambaConfig

from tasks.errors import ModelMissing, ModelTooLarge, ModelUnsupported, ModelUnusable, NotAModel
from tasks.inference.engine import Generated, GenerateRequest, ModelRef, Sampling
from tests.support import tiny_models
from workers.engines.engine import EngineOptions, TransformersEngine
from workers.engines.loading import load
from workers.engines.model_cache import ModelInventory
from workers.engines.model_files import ModelFiles
from workers.engines.onednn import OneDnnLinear, pack, use_onednn
from workers.engines.precision import choose_dtype

pytestmark = pytest.mark.usefixtures("one_thread")

ASKED = [GenerateRequest("hello", Sampling(max_new_tokens=2))]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def engine() -> TransformersEngine:
    return TransformersEngine(EngineOptions({}, on_cpu=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_models.write(tmp_path / "model")


def refusal(engine: TransformersEngine, model: ModelRef) -> str:
    with pytest.raises(ModelUnusable) as caught:
        engine.generate(model, ASKED)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize("tied", [False, True])
def test_weights_are_held_once_and_independently_of_their_file(
    engine: TransformersEngine, tmp_path: Path, tied: bool
) -> None:
    """A file that is rewritten must not change loaded weights, as it would if they were memory-mapped."""
    folder = tiny_models.write(tmp_path / "model", tiny_models.llama(tie_word_embeddings=tied))
    model = ModelRef(str(folder))
    before = engine.generate(model, ASKED)
    network = engine._models.get(model, "generate").model.network
    dense = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in network.parameters()}
    packed = [
        each.packed.numel() * 4
        for each in network.modules()
        if isinstance(each, OneDnnLinear) and each.packed is not None
    ]
    values = sum(each.nbytes for each in load_file(folder / "model.safetensors").values())
    assert packed
    assert abs(sum(dense.values()) + sum(packed) - values) < 1000
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert engine.generate(model, ASKED) == before


def test_packed_weights_are_read_and_saved_with_their_original_values() -> None:
    """Mamba's code reads its weights in this way, besides multiplying with them."""
    network = torch.nn.Sequential(torch.nn.Linear(24, 12), torch.nn.Linear(12, 3))
    before = [layer.weight.detach().clone() for layer in network if isinstance(layer, torch.nn.Linear)]
    use_onednn(network)
    pack(network)
    assert all(isinstance(layer, OneDnnLinear) and layer.packed is not None for layer in network)
    assert all(map(torch.equal, [layer.weight for layer in network if isinstance(layer, OneDnnLinear)], before))
    written = network.state_dict()
    assert all(map(torch.equal, [written["0.weight"], written["1.weight"]], before))


def test_a_missing_directory_is_named(engine: TransformersEngine, tmp_path: Path) -> None:
    assert refusal(engine, ModelRef(str(tmp_path / "gone"))) == f"ModelMissing: no such directory: {tmp_path / 'gone'}"
    (tmp_path / "file").touch()
    assert "is a file" in refusal(engine, ModelRef(str(tmp_path / "file")))


def test_the_error_for_a_directory_without_a_model_names_the_missing_file(
    engine: TransformersEngine, folder: Path
) -> None:
    (folder / "model.safetensors").rename(folder / "elsewhere")
    assert "weights missing" in refusal(engine, ModelRef(str(folder)))
    (folder / "config.json").unlink()
    assert refusal(engine, ModelRef(str(folder))).startswith("NotAModel: not a model: config.json missing")
    assert "has no file other.gguf" in refusal(engine, ModelRef(str(folder), file="other.gguf"))


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{not json"),
        ("config.json", b'{"model_type": "unheard-of"}'),
        ("tokenizer.json", b"{}"),
        ("model.safetensors", b"short"),
        ("model.safetensors", (10**12).to_bytes(8, "little")),
    ],
)
def test_a_broken_file_is_refused_with_a_sentence(
    engine: TransformersEngine, folder: Path, file: str, content: bytes
) -> None:
    (folder / file).write_bytes(content)
    assert refusal(engine, ModelRef(str(folder))).startswith("NotAModel: not a model")


def test_a_truncated_download_is_refused(engine: TransformersEngine, folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert "not a model" in refusal(engine, ModelRef(str(folder)))


def test_missing_weights_are_refused_and_never_initialized_at_random(engine: TransformersEngine, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "lacks weights: model.layers.1.mlp.up_proj.weight" in refusal(engine, ModelRef(str(folder)))
    with pytest.raises(NotAModel, match="lacks weights: score"):
        engine.reward(ModelRef(str(tiny_models.write(folder.parent / "generates"))), [])


def test_the_engine_is_usable_after_a_failed_load(engine: TransformersEngine, folder: Path, tmp_path: Path) -> None:
    refusal(engine, ModelRef(str(tmp_path / "gone")))
    assert isinstance(engine.generate(ModelRef(str(folder)), ASKED)[0], Generated)


def test_an_architecture_with_an_unsupported_cache_is_refused(engine: TransformersEngine, tmp_path: Path) -> None:
    for config in (
        MambaConfig(vocab_size=260, hidden_size=32, num_hidden_layers=2, state_size=4),
        BloomConfig(vocab_size=260, hidden_size=64, n_layer=2, n_head=4),
    ):
        folder = tiny_models.write(tmp_path / config.model_type, config)
        with pytest.raises(ModelUnsupported):
            engine.generate(ModelRef(str(folder)), ASKED)


def test_a_hub_model_needs_a_pinned_revision_and_is_taken_from_the_cache_when_offline(tmp_path: Path) -> None:
    engine = TransformersEngine(EngineOptions({}, on_cpu=True, offline=True, hub_cache=tmp_path))
    assert "needs a `revision`" in refusal(engine, ModelRef("someone/tiny"))
    assert "needs a `revision`" in refusal(engine, ModelRef("someone/tiny", "main"))
    assert "does not contact the hub" in refusal(engine, ModelRef("someone/tiny", COMMIT))
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / COMMIT
    tiny_models.write(snapshot)
    (answer,) = engine.generate(ModelRef("someone/tiny", COMMIT), ASKED)
    assert isinstance(answer, Generated)
    assert answer.version == COMMIT


def test_a_models_version_depends_on_its_weights_and_not_on_its_path(
    tmp_path: Path, engine: TransformersEngine
) -> None:
    one = tiny_models.write(tmp_path / "one")
    shutil.copytree(one, tmp_path / "same")
    other = tiny_models.write(tmp_path / "other", seed=1)
    versions = []
    for place in (one, tmp_path / "same", other):
        (answer,) = engine.generate(ModelRef(str(place)), ASKED)
        assert isinstance(answer, Generated)
        versions.append(answer.version)
    assert versions[0] == versions[1] != versions[2]


def test_a_model_is_loaded_again_after_its_files_change(tmp_path: Path, engine: TransformersEngine) -> None:
    folder = tiny_models.write(tmp_path / "latest")
    (before,) = engine.generate(ModelRef(str(folder)), ASKED)
    tiny_models.write(folder, seed=1)
    (after,) = engine.generate(ModelRef(str(folder)), ASKED)
    assert isinstance(before, Generated)
    assert isinstance(after, Generated)
    assert after.version != before.version
    assert after.token_ids != before.token_ids
    shutil.rmtree(folder)
    (again,) = engine.generate(ModelRef(str(folder)), ASKED)
    assert again == after, "a loaded model answers although its files are deleted"


# --- residents ---


def test_models_stay_resident_until_the_least_recently_used_is_evicted(tmp_path: Path) -> None:
    told: list[ModelInventory] = []
    a, b, c = (ModelRef(str(tiny_models.write(tmp_path / name))) for name in "abc")
    size = (tmp_path / "a/model.safetensors").stat().st_size
    extra = 100_000_000 + 2 * size  # memory that loading takes in addition to resident models
    engine = TransformersEngine(EngineOptions({}, on_cpu=True, memory_bytes=extra + 2 * size + 2_000_000), told.append)
    for model in (a, b, a):
        engine.generate(model, ASKED)
    assert [inventory.loading for inventory in told] == [a.name, "", b.name, ""], "the third model is resident already"
    assert engine.inventory.loaded == (b.name, a.name)
    engine = TransformersEngine(EngineOptions({}, on_cpu=True, memory_bytes=extra), told.append)
    for model in (a, b, a, c):
        engine.generate(model, ASKED)
    assert len(engine.inventory.loaded) < 3
    assert engine.inventory.loaded[-1] == c.name
    assert b.name not in engine.inventory.loaded


def test_the_error_for_a_too_large_model_names_the_memory_it_needs(folder: Path) -> None:
    told: list[ModelInventory] = []
    engine = TransformersEngine(EngineOptions({}, on_cpu=True, memory_bytes=90_000_000), told.append)
    with pytest.raises(ModelTooLarge, match=r"out of memory: .* needs about 0\.1 GB, and 0\.1 GB are free"):
        engine.generate(ModelRef(str(folder)), ASKED)
    assert told[0].loading
    assert not told[-1].loading, "it is not announced as loading for ever"


def test_out_of_memory_while_loading_is_reported(
    folder: Path, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_over(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr("transformers.LlamaForCausalLM.__init__", fall_over)
    with pytest.raises(ModelTooLarge, match="needs about"):
        engine.generate(ModelRef(str(folder)), ASKED)


@pytest.mark.parametrize(("gpus", "wanted"), [(1, torch.device("cuda")), (2, "auto")])
def test_a_model_is_spread_over_the_gpus_of_a_slot(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, wanted: object
) -> None:
    """Check the arguments for transformers, and load on the CPU instead, because not every machine has GPUs."""
    asked, from_pretrained = [], AutoModelForCausalLM.from_pretrained

    def on_the_cpu(*given: object, device_map: object, **options: object) -> object:
        asked.append(device_map)
        return from_pretrained(*given, device_map="cpu", **options)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", on_the_cpu)
    source = ModelFiles(folder, "", "v1")
    model = load(ModelRef(str(folder)), "generate", source, torch.float32, torch.device("cuda"), 1)
    assert (asked, model.device.type) == ([wanted], "cpu")


def test_the_error_for_an_unprepared_default_model_names_the_command(tmp_path: Path) -> None:
    engine = TransformersEngine(EngineOptions({"smollm2": tmp_path / "gone"}, on_cpu=True))
    with pytest.raises(ModelMissing, match=r"python -m workers\.engines\.default_models"):
        engine.generate(ModelRef("smollm2"), ASKED)


# --- precision ---


def test_the_default_type_depends_on_the_cpus_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert choose_dtype("auto", cpu) is torch.float32
    for capable, wanted in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda capable=capable: {"avx512_bf16": capable})
        assert choose_dtype("bfloat16", cpu) is wanted
    assert choose_dtype("float16", cpu) is torch.float32


def test_a_model_is_held_in_the_requested_type(folder: Path, engine: TransformersEngine) -> None:
    if choose_dtype("bfloat16", torch.device("cpu")) is not torch.bfloat16:
        pytest.skip("this CPU has no bfloat16")
    (half,) = engine.generate(ModelRef(str(folder), dtype="bfloat16"), [GenerateRequest("hello", logprobs=True)])
    (full,) = engine.generate(ModelRef(str(folder)), [GenerateRequest("hello", logprobs=True)])
    assert isinstance(half, Generated)
    assert isinstance(full, Generated)
    assert half.logprobs != full.logprobs
    assert half.version == full.version
