"""URLs of Redis behind Sentinel: parsed, mapped to Celery's form, and shown without passwords."""

import ssl

import pytest
from redis.asyncio import sentinel as asyncio_sentinel
from redis.sentinel import SentinelManagedSSLConnection

from config.celery import celery_config
from config.redis_urls import SentinelUrl, redact
from config.settings import Settings
from tasks.app import create_celery
from tasks.connections import connect, create_async_pool


def test_a_sentinel_url_names_sentinels_service_and_database() -> None:
    found = SentinelUrl.parse("redis+sentinel://me:p%40ss@a:1,b,[::1]:3/main/2?sentinel_password=s")
    assert found == SentinelUrl((("a", 1), ("b", 26379), ("::1", 3)), "main", 2, "me", "p@ss", "s")
    assert found.redis_options() == {"db": 2, "username": "me", "password": "p@ss"}
    assert found.sentinel_options() == {"password": "s"}
    login = "sentinel://me:p%40ss@"
    assert found.broker_url() == f"{login}a:1/2;{login}b:26379/2;{login}[::1]:3/2"
    assert found.transport_options() == {
        "master_name": "main",
        "sentinel_kwargs": {"password": "s", "socket_timeout": 5, "socket_connect_timeout": 5},
    }


def test_a_password_without_a_user_is_that_of_the_default_user() -> None:
    found = SentinelUrl.parse("redis+sentinel://:secret@a/main")
    assert (found.username, found.password, found.sentinel_options()) == (None, "secret", {})
    assert found.broker_url() == "sentinel://:secret@a:26379/0"


SECURED = "rediss+sentinel://me:p%40ss@a:1,b:2/main/3?sentinel_password=s"


def test_tls_is_a_scheme_for_every_role() -> None:
    assert SentinelUrl.parse(SECURED).redis_options()["ssl"] is True
    with create_celery(Settings(redis_url=SECURED)) as app, app.connection_for_write() as broker:
        assert broker.ssl == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    with create_celery(Settings(redis_url=SECURED.replace("rediss", "redis"))) as app:
        assert not app.connection_for_write().ssl


def test_the_connections_of_a_client_have_its_login_its_database_and_tls() -> None:
    with connect(SECURED) as client:
        pool = client.connection_pool
        assert pool.connection_class is SentinelManagedSSLConnection
        wanted = {"username": "me", "password": "p@ss", "db": 3}
        assert {name: pool.connection_kwargs[name] for name in wanted} == wanted
        sentinels = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"], each["password"]) for each in sentinels] == [("a", 1, "s"), ("b", 2, "s")]
    assert all(each["socket_timeout"] for each in sentinels)


def test_the_connections_of_an_asyncio_pool_have_its_login_its_database_and_tls() -> None:
    pool = create_async_pool(SECURED, socket_timeout=1, socket_connect_timeout=1)
    assert pool.connection_class is asyncio_sentinel.SentinelManagedSSLConnection
    wanted = {"username": "me", "password": "p@ss", "db": 3}
    assert {name: pool.connection_kwargs[name] for name in wanted} == wanted
    plain = create_async_pool("redis+sentinel://a/main", socket_timeout=1, socket_connect_timeout=1)
    assert plain.connection_class is asyncio_sentinel.SentinelManagedConnection


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
