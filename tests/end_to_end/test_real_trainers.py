"""Real trainers from the package index, each in its own environment, against the running stack. Slow."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from assay import Assay

from tests.conftest import ROOT
from tests.end_to_end.test_rewards import Stack, stack  # noqa: F401  # the fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

#: The versions that the adapters are tested with.
TRL, VERL, SWIFT = "trl==1.16.0", "verl==0.9.1", "ms-swift==4.6.0"


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., Path]:
    """Make a Python with this package on top of the packages of the tests, so that torch is not installed twice."""

    def make(*packages: str) -> Path:
        folder = tmp_path / "environment"
        run(sys.executable, "-m", "venv", str(folder))
        python = folder / "bin/python"
        code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        site = Path(run(str(python), "-c", code).strip())
        (site / "tests_own.pth").write_text(sysconfig.get_paths()["purelib"])
        installed = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if installed.returncode:
            pytest.skip(f"{packages} cannot be installed here: {installed.stderr[-300:]}")
        return python

    return make


def run(*argv: str, **environment: str) -> str:
    path = os.pathsep.join([str(ROOT), str(ROOT / "client/src")])
    done = subprocess.run(
        argv, cwd=ROOT, env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{argv}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_verl_with_its_own_dataproto_managers_and_loader(
    stack: Stack,  # noqa: F811  # the fixture
    environment: Callable[..., Path],
) -> None:
    python = environment(VERL)
    printed = run(str(python), "tests/end_to_end/verl_program.py", stack.url)
    told = json.loads(printed.partition("RESULT ")[2])
    assert told["as_verl"], "without judge and penalty our manager gives verl's rewards"
    assert told["rm_scores"]
    assert told["judged"] == told["judged_stand_in"]
    assert told["extra"]["original_score"] == [1.0, 0.0, 0.0, 1.0]
    assert told["extra"]["response_length"] == [4, 16, 1, 1]
    assert all(score > 0 for score in told["extra"]["openai_quality_reward"][::3])
    assert told["extra"]["valid"] == [True] * 4
    right = [1.0, 1.0, 0.0, 1.0]
    assert told["single"] == told["batch"] == {"score": right, "valid": [True] * 4, "numeric_match": right}
    assert [each["score"] for each in told["loop"]] == right
    assert printed.count("[response]") > 0, "num_examine samples were printed"


def test_swift_computes_rewards_with_the_plugin(
    stack: Stack,  # noqa: F811  # the fixture
    environment: Callable[..., Path],
) -> None:
    python = environment(SWIFT)
    printed = run(str(python), "tests/end_to_end/swift_program.py", ASSAY_URL=stack.url, CUDA_VISIBLE_DEVICES="")
    rewards = json.loads(printed.partition("RESULT ")[2])
    right, wrong, unreadable = (each[0] for each in rewards)
    assert right > wrong
    assert unreadable is None, "an item that cannot be scored has no number"


TINY_MODEL = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

set_seed(1)
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(["<pad>", "<end>", *letters])}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
config = LlamaConfig(vocab_size=len(fast), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256,
                     pad_token_id=fast.pad_token_id, eos_token_id=fast.eos_token_id, bos_token_id=None)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
fast.save_pretrained(sys.argv[1])
"""


def test_trl_trains_three_steps_on_our_rewards(
    stack: Stack,  # noqa: F811  # the fixture
    environment: Callable[..., Path],
    tmp_path: Path,
) -> None:
    python, model = str(environment(TRL)), str(tmp_path / "tiny")
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    run(python, "-c", TINY_MODEL, model, **offline)
    program = (
        python,
        "examples/trl_grpo.py",
        "--model",
        model,
        "--steps",
        "3",
        "--cpu",
        "--output",
        str(tmp_path / "out"),
    )
    printed = run(*program, ASSAY_URL=stack.url, **offline)
    steps = [json.loads(line) for line in printed.splitlines() if line.startswith('{"step"')]
    assert [each["step"] for each in steps] == [1, 2, 3]
    with Assay(stack.url) as client:
        jobs = [client.job(view.id) for view in reversed(list(client.jobs()))]
        rows = [list(job.results()) for job in jobs]
    assert all(row.valid for each in rows for row in each)
    of_the_server = [fmean(row.score or 0.0 for row in each) for each in rows]
    assert [each["reward"] for each in steps] == pytest.approx(of_the_server, abs=1e-5), (
        "TRL used the rewards of the server"
    )
    assert len({round(reward, 6) for reward in of_the_server}) > 1, (
        "rewards differ; with equal rewards the comparison would show little"
    )
