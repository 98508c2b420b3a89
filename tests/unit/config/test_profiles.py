"""API profiles: parsing of the file, a message per mistake, and keys that are never part of a profile."""

from pathlib import Path
from typing import Any

import pytest

from config.profiles import (
    HostNotAllowed,
    Profile,
    Profiles,
    UnknownProfile,
    load_profiles,
    normalized,
    read_key,
    read_profiles,
    require_allowed,
)
from config.settings import Settings, SettingsError
from tests.conftest import ROOT

BASE = 'base_url = "http://here/v1"\nmodels = ["m"]\n'


def profile(**fields: Any) -> Profile:
    return Profile.model_validate({"name": "main", "base_url": "http://here/v1", "models": ["m"]} | fields)


def test_the_example_is_valid() -> None:
    profiles = read_profiles(ROOT / "config/profiles.example.toml")
    assert {each.name for each in profiles} >= {"main", "deepseek", "together", "qianfan", "local"}
    text = (ROOT / "config/profiles.example.toml").read_text()
    assert not [field for field in Profile.model_fields if field not in (*text.split(), "name", "headers")]


def test_without_a_file_the_development_api_is_the_only_profile() -> None:
    (profile,) = load_profiles(Settings())
    assert (profile.name, profile.base_url) == ("development", Settings().development_api_url)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'[profiles.a]\n{BASE}fallback = "b"', "profile a: its fallback b is not a profile"),
        (f'[profiles.a]\n{BASE}fallback = "a"', "profile a: its fallbacks form a cycle (a -> a)"),
        ('[profiles.a]\nbase_url = "here"\nmodels = ["m"]', "profile a: base_url: must be a URL such as"),
        (
            '[profiles.a]\nbase_url = "http://u:hunter2@here"\nmodels = ["m"]',
            "profile a: base_url: must not contain a user or a password",
        ),
        ('[profiles.a]\nbase_url = "http://here"\nmodels = []', "profile a: models: tuple should have at least 1 item"),
        (f"[profiles.a]\n{BASE}rpm = 0", "profile a: rpm: input should be greater than or equal to 1"),
        (f"[profiles.a]\n{BASE}rmp = 5", "profile a: rmp: extra inputs are not permitted"),
        (f"[profiles.A]\n{BASE}", "profile A: name: string should match pattern"),
        (
            f'[profiles.a]\n{BASE}api_key_env = "sk-hunter2"',
            "profile a: api_key_env: must be the name of an environment",
        ),
        (
            f'[profiles.a]\n{BASE}headers = {{authorization = "hunter2"}}',
            "profile a: headers: must not contain Authorization",
        ),
        (f'[profiles.a]\n{BASE}api_key_env = "K"\napi_key_file = "/k"', "give api_key_env or api_key_file, not both"),
        (f"[profiles.a]\n{BASE}price_in = 1", "give both price_in and price_out, or neither"),
        ("[profiles", "cannot be read"),
        ("profiles = 3", "write each profile as a table [profiles.NAME]"),
    ],
)
def test_a_mistake_is_named_in_one_line_and_shows_no_secret(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        read_profiles(path)
    assert said in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert "hunter2" not in str(error.value)


def test_a_longer_cycle_is_reported_for_each_of_its_members() -> None:
    with pytest.raises(SettingsError) as error:
        Profiles(profile(name="a", fallback="b"), profile(name="b", fallback="a"), profile(name="c", fallback="a"))
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == ["profile a", "profile b"]


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("https://api.example.com/v1", "https://api.example.com/v1"),
        ("https://api.example.com/v1/", "https://api.example.com/v1"),
        ("https://api.example.com:443/v1/chat/completions", "https://api.example.com/v1"),
        ("https://API.example.com/v2/chat/completions/", "https://api.example.com/v2"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_a_full_chat_url_is_normalized_to_its_base(given: str, base: str) -> None:
    assert normalized(given) == base


def test_a_key_is_read_from_the_source_in_the_profile(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-file\n")
    keyed = profile(api_key_env="THE_KEY")
    key = read_key(keyed, {"THE_KEY": "from-env"})
    assert key is not None
    assert key.get_secret_value() == "from-env"
    assert "from-env" not in repr((key, keyed))
    from_file = read_key(profile(api_key_file=tmp_path / "key"), {})
    assert from_file is not None
    assert from_file.get_secret_value() == "from-file"
    assert read_key(profile(), {"OPENAI_API_KEY": "x"}) is None


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="profile main: the variable THE_KEY is not set"):
        read_key(profile(api_key_env="THE_KEY"), {})
    with pytest.raises(SettingsError, match=r"profile main: its api_key_file cannot be read \(No such file"):
        read_key(profile(api_key_file=tmp_path / "none"), {})


def test_an_unknown_profile_lists_the_known_profiles() -> None:
    with pytest.raises(UnknownProfile, match="Unknown profile 'other': use main"):
        Profiles(profile()).get("other")


@pytest.mark.parametrize(
    ("hosts", "url", "is_allowed"),
    [
        ("", "https://api.example.com/v1", False),
        ("api.example.com", "https://API.example.com/v1/chat/completions", True),
        ("api.example.com", "https://api.example.com.evil.org/v1", False),
        ("other.org, *.example.com", "https://api.example.com/v1", True),
        ("*.example.com", "https://evilexample.com/v1", False),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1", True),
        ("127.0.0.1:8000", "http://127.0.0.1:8001/v1", False),
    ],
)
def test_a_clients_url_is_refused_unless_its_host_is_allowed(hosts: str, url: str, is_allowed: bool) -> None:
    profiles = load_profiles(Settings(api_hosts=hosts))
    if is_allowed:
        assert require_allowed(url, hosts) == normalized(url)
        assert profiles.get(url).base_url == normalized(url)
        assert read_key(profiles.get(url), {}) is None
    else:
        with pytest.raises(HostNotAllowed, match="is not allowed"):
            profiles.get(url)


def test_an_invalid_url_is_an_unknown_profile() -> None:
    with pytest.raises(UnknownProfile, match="must be a URL such as"):
        load_profiles(Settings(api_hosts="*.example.com")).get("ftp://api.example.com")


def test_costs_are_exact() -> None:
    priced = profile(price_in=0.15, price_out=0.60)
    assert priced.cost_nano(1_000_000, 1_000_000) == 750_000_000
    assert priced.cost_nano(1, 1) == 750
    assert profile().cost_nano(1, 1) is None
