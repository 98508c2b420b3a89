"""Translation of Redis errors to Assay's errors, and redaction of passwords."""

import pytest
from redis import exceptions
from redis.sentinel import MasterNotFoundError

from tasks.connections import redact, translate_redis_errors
from tasks.errors import AssayError, RedisRefused, RedisUnavailable


def test_a_password_is_not_shown() -> None:
    assert redact("redis://:hunter2@here:6379/0") == "redis://:***@here:6379/0"
    assert redact("redis://me:hunter2@here:6379/0") == "redis://me:***@here:6379/0"
    assert redact("redis://here:6379/0?password=hunter2") == "redis://here:6379/0?***"
    assert redact("redis://here:6379/0") == "redis://here:6379/0"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (exceptions.ConnectionError("refused"), RedisUnavailable, "does not answer"),
        (exceptions.TimeoutError("slow"), RedisUnavailable, "does not answer"),
        (exceptions.BusyLoadingError("LOADING"), RedisUnavailable, "still loading"),
        (exceptions.ReadOnlyError("READONLY"), RedisUnavailable, "read-only replica"),
        (exceptions.OutOfMemoryError("OOM"), RedisUnavailable, "is full"),
        (exceptions.ResponseError("MISCONF Errors writing"), RedisUnavailable, "disk is probably full"),
        (exceptions.ResponseError("Error running script: MISCONF Errors"), RedisUnavailable, "disk is probably full"),
        (exceptions.ResponseError("DB index is out of range"), RedisRefused, "does not have this database"),
        (exceptions.AuthenticationError("NOAUTH"), RedisRefused, "requires a password"),
        (exceptions.NoPermissionError("NOPERM"), RedisRefused, "denies this user"),
        (MasterNotFoundError("No master found for 'main'"), RedisUnavailable, "name no primary"),
        (MasterNotFoundError("No master : <c> - auth:AuthenticationError"), RedisRefused, "add .sentinel_password="),
    ],
)
def test_each_redis_error_names_cause_and_remedy(error: Exception, kind: type[AssayError], said: str) -> None:
    with pytest.raises(kind, match=said) as raised, translate_redis_errors("redis://:secret@here"):
        raise error
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is error
