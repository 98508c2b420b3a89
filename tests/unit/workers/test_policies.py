"""Pure parts of policies: classification of errors, use of plans, assignment of servers to slots, and scores."""

import math

import numpy as np
import pytest

from config.queues import Slot
from config.settings import Settings, SettingsError, load_settings
from tasks.episodes.model import Episode, EpisodeSpec
from tasks.episodes.summary import as_record, summarise
from tasks.errors import Permanent, PolicyBroken, PolicyFailed, Retryable
from workers.development_policy.controllers import plan
from workers.devices.discovery import PinnedSlot
from workers.policies.address import Address
from workers.policies.concurrency import Pace
from workers.policies.episode import read_plan
from workers.policies.identity import identify
from workers.policies.server_errors import read_failure
from workers.policies.servers.addresses import server_urls, servers_of_slot
from workers.policies.servers.health import is_wedged
from workers.policies.servers.supervision import server_command

TRACEBACK = 'Traceback (most recent call last):\n  File "serve.py", line 7, in infer\n    raise it\n'


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ("KeyError: 'observation/wrist_image'", PolicyFailed),
        ("ValueError: expected a state of 8\n  but got 7", PolicyFailed),
        ("torch.OutOfMemoryError: CUDA out of memory.", PolicyBroken),
        ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", PolicyBroken),
        ("RuntimeError: CUDA error: device-side assert triggered", PolicyBroken),
        ("OSError: [Errno 28] No space left on device", PolicyBroken),
    ],
)
def test_a_servers_traceback_decides_between_request_and_server_error(last: str, kind: type[Exception]) -> None:
    error = read_failure(TRACEBACK + last + "\n", "ws://gpu1:8000")
    assert type(error) is kind
    assert last.splitlines()[0] in str(error)
    assert "ws://gpu1:8000" in str(error)


def test_a_request_error_is_not_retried_and_a_server_error_is() -> None:
    assert issubclass(PolicyFailed, Permanent)
    assert issubclass(PolicyBroken, Retryable)
    assert "it does not say why" in str(read_failure("", "ws://x:1"))


def test_the_first_steps_of_a_plan_are_used() -> None:
    actions = np.arange(20, dtype=np.float32).reshape(10, 2)
    assert read_plan({"actions": actions}, 5, 2).tolist() == actions[:5].tolist()


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"actions": None},
        {"actions": [[0.0, 0.0]]},
        {"actions": np.array([["a", "b"]])},
        {"actions": np.zeros(2)},
        {"actions": np.zeros((10, 7))},
        {"actions": np.zeros((1, 10, 2))},
        {"actions": np.zeros((4, 2))},
        {"actions": np.full((10, 2), np.nan)},
        {"actions": np.full((10, 2), np.inf)},
    ],
)
def test_invalid_actions_are_a_failure_of_the_policy(reply: dict[str, object]) -> None:
    with pytest.raises(PolicyFailed):
        read_plan(reply, 5, 2)


def test_a_policy_is_identified_by_its_servers_metadata() -> None:
    said = identify(b"1", {"policy": "pi0_libero", "checkpoint": "gs://there/29999"})
    assert (said.name, said.version, said.is_known) == ("pi0_libero", "gs://there/29999", True)
    silent = identify(b"2", {"reset_pose": [0.0, 1.0]})
    assert (silent.name, silent.version, silent.is_known) == ("policy", "", False)
    assert said.digest != silent.digest
    assert identify(b"3", {}, version="2026-05").version == "2026-05"
    assert identify(b"4", {"version": 3}, version="2026-05").version == "3"


def test_a_server_gets_enough_episodes_to_keep_it_busy() -> None:
    pace = Pace(most=6)
    assert pace.episodes == 2
    pace.note(simulated_s=0.01, inferred_s=1.0)
    assert pace.episodes == 2, "with light simulators, an episode steps while the server infers for a second episode"
    for _ in range(50):
        pace.note(simulated_s=2.5, inferred_s=1.0)
    assert pace.episodes == 4
    for _ in range(50):
        pace.note(simulated_s=100.0, inferred_s=1.0)
    assert pace.episodes == 6, "never more than allowed"
    assert Pace(most=1).episodes == 1


def episode(success: bool, steps: int = 10, *inference_ms: float) -> Episode:
    return Episode(success, steps, 1.0, "do it", inference_ms, 0.1, "ws://x:1", "pi0", "1")


def test_a_score_is_the_share_of_successes_with_its_interval() -> None:
    ran = [episode(True, 10, 50.0, 70.0), episode(False, 30, 60.0), episode(True), episode(True)]
    summary = summarise([as_record(each, EpisodeSpec()) for each in ran])
    assert (summary.success_rate, summary.episodes, summary.mean_steps) == (0.75, 4, 15.0)
    assert (summary.mean_inference_ms, summary.max_inference_ms) == (60.0, 70.0)
    assert 0.30 < summary.low < 0.31  # Wilson: 0.3006 to 0.9544
    assert 0.95 < summary.high < 0.96


def test_few_episodes_have_a_wide_interval_and_zero_episodes_no_score() -> None:
    sure = summarise([as_record(episode(True), EpisodeSpec())])
    assert (sure.success_rate, sure.high) == (1.0, 1.0)
    assert sure.low < 0.3
    with pytest.raises(ValueError, match="no episode ran"):
        summarise([])


def test_a_loading_server_has_a_longer_timeout_than_a_server_that_has_answered() -> None:
    def judged(now: float, answered_at: float) -> bool:
        return is_wedged(now, started_at=100.0, answered_at=answered_at, start_s=60.0, silent_s=10.0)

    assert not judged(now=150.0, answered_at=-math.inf)
    assert judged(now=161.0, answered_at=-math.inf)
    assert not judged(now=150.0, answered_at=99.0), "that was the process before it"
    assert not judged(now=150.0, answered_at=141.0)
    assert judged(now=150.0, answered_at=139.0)


def test_servers_are_given_or_one_per_slot() -> None:
    assert server_urls(Settings(policy_urls="gpu1:8000, wss://gpu2:8001/"), 4) == ("ws://gpu1:8000", "wss://gpu2:8001")
    assert server_urls(Settings(policy_port=9000), 2) == ("ws://127.0.0.1:9000", "ws://127.0.0.1:9001")


@pytest.mark.parametrize("servers", range(6))
@pytest.mark.parametrize("slots", range(1, 5))
def test_every_server_has_one_slot(servers: int, slots: int) -> None:
    urls = [str(number) for number in range(servers)]
    shares = [servers_of_slot(urls, slot, slots) for slot in range(slots)]
    assert sorted(url for share in shares for url in share) == urls
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_gpu_host_and_gpu_ports_name_the_servers_unless_assays_settings_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PORTS", "8000, 8001")
    assert load_settings().policy_urls == "ws://127.0.0.1:8000,ws://127.0.0.1:8001"
    monkeypatch.setenv("GPU_HOST", "gpu1")
    assert load_settings().policy_urls == "ws://gpu1:8000,ws://gpu1:8001"
    assert not load_settings().uses_development_policy
    monkeypatch.setenv("ASSAY_POLICY_COMMAND", "serve --port {port}")
    assert load_settings().policy_urls == ""
    monkeypatch.delenv("ASSAY_POLICY_COMMAND")
    monkeypatch.setenv("ASSAY_POLICY_URLS", "ws://other:1")
    assert load_settings().policy_urls == "ws://other:1"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ASSAY_POLICY_URLS", "http://gpu1:8000", "ASSAY_POLICY_URLS: must be URLs separated by commas"),
        ("ASSAY_POLICY_URLS", "ws://me:secret@gpu1:8000", "put a key into ASSAY_POLICY_API_KEY"),
        ("ASSAY_POLICY_URLS", "gpu1:many", "ASSAY_POLICY_URLS: must be URLs"),
        ("ASSAY_POLICY_COMMAND", "serve --port 8000", "ASSAY_POLICY_COMMAND: must contain {port}"),
        ("ASSAY_POLICY_COMMAND", "serve '{port}", "ASSAY_POLICY_COMMAND: cannot be parsed"),
    ],
)
def test_the_error_for_an_invalid_setting_names_it(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=None) as error:
        load_settings()
    assert said in str(error.value)
    assert "secret" not in str(error.value)


def test_servers_are_given_or_started_but_not_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_POLICY_URLS", "gpu1:8000")
    monkeypatch.setenv("ASSAY_POLICY_COMMAND", "serve {port}")
    with pytest.raises(SettingsError, match="either given"):
        load_settings()


def test_a_key_is_never_shown() -> None:
    assert "s3cret" not in repr(Settings(policy_api_key="s3cret"))
    assert "s3cret" not in repr(Address("ws://gpu1:8000", "s3cret"))


def test_a_command_is_filled_in_for_its_slot_and_pinned_to_its_devices() -> None:
    settings = Settings(node="node1", policy_command="""serve --port={port} --gpu '{device}' --more '{"a": 1}'""")
    command = server_command(settings, PinnedSlot(Slot("node1", 1), ("2", "3"), None), 8001)
    assert command.name == "policy.node1.1"
    assert command.argv == ("serve", "--port=8001", "--gpu", "2,3", "--more", '{"a": 1}')
    assert command.environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert command.log_path.endswith("logs/pi0_gpu1.log")


def test_the_development_policy_understands_only_colours() -> None:
    seen = {"observation/state": np.zeros(2), "observation/targets": np.eye(4, 2)}
    assert plan(seen | {"prompt": "Go to the RED one"}, 3)[0].tolist() == [1.0, 0.0]
    assert plan(seen | {"prompt": "the green cube, please"}, 3)[0].tolist() == [0.0, 1.0]
    for prompt in ("", "reach the target", "red or green", "reddish"):
        assert not plan(seen | {"prompt": prompt}, 3).any()
    with pytest.raises(KeyError):
        plan(seen, 3)
    with pytest.raises(ValueError, match="no controller takes"):
        plan({"observation/state": np.zeros(8), "prompt": "red"}, 3)
