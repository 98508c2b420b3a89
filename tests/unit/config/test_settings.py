"""Settings: read from ASSAY_ variables, invalid variables named, secrets never shown."""

import pytest

from config.settings import Settings, SettingsError, default_node, load_settings
from tests.conftest import ROOT


def test_broker_and_cache_default_to_the_state_redis() -> None:
    settings = load_settings(redis_url="redis://there:6379/3")
    assert settings.broker_url == settings.cache_url == "redis://there:6379/3"


def test_an_empty_variable_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_PORT", "")
    assert load_settings().port == 6006


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ASSAY_PORT", "seventy", "ASSAY_PORT: input should be a valid integer"),
        ("ASSAY_PORT", "70000", "ASSAY_PORT: input should be less than or equal to 65535"),
        ("ASSAY_REDIS_URL", "http://here", "ASSAY_REDIS_URL: must start with redis://"),
        ("ASSAY_NODE", "Node.1", "ASSAY_NODE: must be at most 63 lower-case"),
        ("ASSAY_SLOTS", "-1", "ASSAY_SLOTS: must be a number of workers"),
        ("ASSAY_SLOTS", "0", "ASSAY_SLOTS: must be a number of workers"),
        ("ASSAY_API_WORKERS_MIN", "9", "ASSAY_API_WORKERS_MIN must not be greater than ASSAY_API_WORKERS_MAX"),
        ("ASSAY_PROT", "6006", "ASSAY_PROT is not a setting; did you mean ASSAY_PORT?"),
        ("ASSAY_REDIS_URL", "redis://here:abc/0", "ASSAY_REDIS_URL: must be a URL with a host"),
        ("ASSAY_REDIS_URL", "redis://:se/cret@here", "ASSAY_REDIS_URL: must be a URL with a host"),
        ("ASSAY_STOP_GRACE_S", "inf", "ASSAY_STOP_GRACE_S: input should be a finite number"),
        ("ASSAY_DEVELOPMENT_API_PORT", "5555", "ASSAY_FLOWER_PORT and ASSAY_DEVELOPMENT_API_PORT must differ"),
        ("ASSAY_FLOWER_PORT", "6006", "ASSAY_PORT and ASSAY_FLOWER_PORT must differ"),
        ("ASSAY_FLOWER_BASIC_AUTH", "admin:a,b", "ASSAY_FLOWER_BASIC_AUTH: must be user:password, without commas"),
        ("ASSAY_TRACES_URL", "grpc://here:4317", "ASSAY_TRACES_URL: must be the URL of an OTLP/HTTP collector"),
        ("ASSAY_TRACES_URL", "http://", "ASSAY_TRACES_URL: must be a URL with a host"),
        ("ASSAY_HOST", "0.0.0.0", "ASSAY_HOST: without tokens the API serves only loopback"),
        ("ASSAY_FLOWER_HOST", "0.0.0.0", "set ASSAY_FLOWER_BASIC_AUTH to serve it beyond"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_the_clients_variables_are_not_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_URL", "http://there:6006")
    monkeypatch.setenv("ASSAY_REWARD", "math")
    monkeypatch.setenv("ASSAY_TOKEN", "s3cret")
    assert load_settings().port == 6006


def test_every_mistake_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_PORT", "x")
    monkeypatch.setenv("ASSAY_LOG_LEVEL", "LOUD")
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert "ASSAY_PORT" in str(error.value)
    assert "ASSAY_LOG_LEVEL" in str(error.value)


def test_a_password_in_a_wrong_url_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_REDIS_URL", "htp://:hunter2@here")
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert "hunter2" not in str(error.value)


def test_a_host_name_becomes_a_node_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "GPU_Box.example.org")
    assert default_node() == "gpu-box-example-org"
    assert Settings(node=default_node()).node == "gpu-box-example-org"


def test_docs_list_every_setting_with_its_current_text() -> None:
    from config.settings import as_markdown

    assert as_markdown() in (ROOT / "docs/settings.md").read_text(), "run `make docs`"
