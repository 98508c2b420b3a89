"""URLs of Redis behind Sentinel: parsed, mapped to Celery's form, and shown without passwords."""

import pytest

from config.celery import celery_config
from config.redis_urls import SentinelUrl, redact
from config.settings import Settings


def test_a_sentinel_url_names_sentinels_service_and_database() -> None:
    found = SentinelUrl.parse("redis+sentinel://me:p%40ss@a:1,b,[::1]:3/main/2?sentinel_password=s")
    assert found == SentinelUrl((("a", 1), ("b", 26379), ("::1", 3)), "main", 2, "me", "p@ss", "s")
    assert found.redis_options() == {"db": 2, "username": "me", "password": "p@ss"}
    assert found.sentinel_options() == {"password": "s"}
    login = "sentinel://me:p%40ss@"
    assert found.broker_url() == f"{login}a:1/2;{login}b:26379/2;{login}[::1]:3/2"
    assert found.transport_options() == {"master_name": "main", "sentinel_kwargs": {"password": "s"}}


def test_tls_is_a_scheme() -> None:
    assert SentinelUrl.parse("rediss+sentinel://a/main").redis_options()["ssl"] is True


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://a:1", "names the service"),
        ("redis+sentinel://a:1/", "names the service"),
        ("redis+sentinel://a:x/main", "'a:x' is not host:port"),
        ("redis+sentinel://a,,b/main", "'' is not host:port"),
        ("redis+sentinel://a/main/x", "must be a number"),
    ],
)
def test_a_mistake_is_named(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SentinelUrl.parse(url)
    with pytest.raises(ValueError, match=message):
        Settings(redis_url=url)


def test_every_role_may_be_behind_sentinel() -> None:
    url = "redis+sentinel://a:1,b:2/main/0"
    settings = Settings(redis_url=url)
    assert (settings.broker_url, settings.cache_url) == (url, url)
    config = celery_config(settings)
    assert config["broker_url"] == "sentinel://a:1/0;sentinel://b:2/0"
    assert config["broker_transport_options"]["master_name"] == "main"


def test_a_password_is_not_shown() -> None:
    assert redact("redis+sentinel://me:secret@a:1,b:2/main/0?sentinel_password=s") == (
        "redis+sentinel://me:***@a:1,b:2/main/0?***"
    )
