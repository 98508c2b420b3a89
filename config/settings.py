"""Settings of Assay: read from `ASSAY_*` environment variables and validated by `load_settings()`.

Only entry points call `load_settings` (`web/wsgi.py`, `workers/main.py`, `workers/launch.py`, ...); other code gets the
settings as an argument. `python -m config.settings` prints the table of docs/settings.md; `make docs` writes it.
"""

import difflib
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from importlib import metadata
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from config.redis_urls import SentinelUrl, is_sentinel
from config.schedule import parse_schedule

PREFIX = "ASSAY_"
NODE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
#: Variables of the client (`client/`), which may share its environment with a server.
CLIENT_VARIABLES = ("ASSAY_URL", "ASSAY_TOKEN", "ASSAY_REWARD")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: Warning shown in logs and on pages while no API is configured.
DEVELOPMENT_NOTE = "judging uses the development API: scores mean nothing"
DEVELOPMENT_POLICY_NOTE = "episodes are run by the development policy: success rates mean nothing"
#: `reach`, `libero`, or `gymnasium:` and an id.
ENVIRONMENT = re.compile(r"reach|libero|gymnasium:[\w.:/-]{1,100}")
#: Package of the extra that traces require.
TRACING_PACKAGE = "opentelemetry-exporter-otlp-proto-http"
SLOTS = re.compile(r"(cpu:)?[1-9][0-9]{0,3}")


class SettingsError(Exception):
    """A setting has an invalid value: correct the named variable."""


def default_node() -> str:
    """Return this host's name, converted to the characters that a queue name allows."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:63] or "node"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, allow_inf_nan=False
    )

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="Redis that stores the state: jobs, leases, the worker registry. Must not evict keys "
        "(`noeviction`). With Sentinel: `redis+sentinel://host:port,host:port/service/db`.",
    )
    redis_replicas: int = Field(
        0,
        ge=0,
        le=10,
        description="Replicas of the state Redis that must have a new job, and each counted result, before the server "
        "or worker continues (Redis's `WAIT`). With it, a failover loses none of them; each costs a round trip more.",
    )
    redis_replicas_timeout_s: float = Field(
        2.0, gt=0, le=4, description="Seconds to wait for `ASSAY_REDIS_REPLICAS` before a submit fails with 503."
    )
    redis_memory_share: float = Field(
        0.7,
        gt=0,
        le=1,
        description="Share of the state Redis's `maxmemory` above which new jobs are refused with 503. The rest is a "
        "reserve for the outcomes of accepted jobs.",
    )
    broker_url: str = Field(
        default_factory=lambda data: data["redis_url"],
        description="Broker of Celery's queues: Redis, or RabbitMQ (`amqp://`).",
    )
    rabbitmq_queues: Literal["classic", "quorum"] = Field(
        "classic",
        description="Type of the queues on RabbitMQ: `classic` with priorities, or `quorum`, replicated by a RabbitMQ "
        "cluster, with a queue per priority. The same value for every process.",
    )
    cache_url: str = Field(
        default_factory=lambda data: data["redis_url"],
        description="Redis that stores cached results; may evict keys.",
    )
    node: str = Field(
        default_factory=default_node,
        description="Stable name of this host in queue names (`gpu.<node>.<n>`): lower case, digits and dashes.",
    )
    slots: str = Field(
        "",
        description="Number of device workers on this host: `N`, or `cpu:N` to use CPU slots and no GPUs. "
        "Empty: one slot per GPU, or two CPU slots on a host without GPUs.",
    )
    host: str = Field(
        "127.0.0.1", description="Address that the API listens on. Beyond loopback only with `ASSAY_TOKENS_FILE`."
    )
    port: int = Field(6006, ge=1, le=65535, description="Port of the API and the dashboard.")
    web_processes: int = Field(1, ge=1, le=64, description="Number of gunicorn processes of the API.")
    web_threads: int = Field(
        320,
        ge=8,
        le=2048,
        description="Threads per gunicorn process. An open event stream, and a submit or trainer that waits, hold a "
        "thread each, and may use at most seven eighths of the threads.",
    )
    tokens_file: Path | None = Field(
        None,
        description="File of hashed bearer tokens; `python -m web.tokens add NAME` writes it. "
        "Unset: requests need no token, and the API serves only loopback.",
    )
    max_body_mb: float = Field(64, gt=0, description="Maximum size of a JSON body in megabytes, decompressed.")
    max_upload_mb: float = Field(10_240, gt=0, description="Maximum size of a JSONL body in megabytes, decompressed.")
    max_item_mb: float = Field(8, gt=0, description="Maximum size of an item, or a line, in megabytes.")
    max_items: int = Field(50_000, ge=1, description="Maximum items of a JSON body; JSONL may have more.")
    input_urls: str = Field(
        "",
        description="URL prefixes allowed in a job's `items_url`, separated by commas: `file:///data/contexts`, "
        "`s3://bucket/prefix` (with its package installed). Empty: `items_url` is refused.",
    )
    weights_urls: str = Field(
        "",
        description="URL prefixes allowed for the weights of a rollout's version, separated by commas: "
        "`file:///data/weights`, `s3://bucket/prefix`. Empty: weights must be uploaded.",
    )
    max_wait_s: float = Field(300, ge=0, description="Maximum seconds that a submit may wait for its results.")
    score_wait_s: float = Field(
        1790, ge=0, description="Timeout of `POST /score` in seconds; long, because episodes take long."
    )
    backlog_items: int = Field(
        20_000_000, ge=1, description="Maximum queued items; above it, new jobs are refused with 503 until it shrinks."
    )
    flower_host: str = Field("127.0.0.1", description="Address that Flower listens on.")
    flower_port: int = Field(5555, ge=1, le=65535, description="Port of Flower.")
    flower_basic_auth: str = Field(
        "",
        repr=False,
        description="`user:password` for Flower. Empty: no password, and loopback only; with `ASSAY_TOKENS_FILE`, a "
        "password is generated and stored in `flower_auth` of `ASSAY_DATA_DIR`.",
    )
    flower_read_only: bool = Field(
        True,
        description="Whether Flower is read-only. If false, every user who reaches Flower can stop workers and run "
        "any task.",
    )
    api_workers_min: int = Field(1, ge=0, le=256, description="Minimum API worker processes on this host.")
    api_workers_max: int = Field(
        2, ge=1, le=256, description="Maximum API worker processes on this host, when work is queued."
    )
    api_threads: int = Field(16, ge=1, le=512, description="Concurrent tasks of an API worker process.")
    cpu_workers_min: int = Field(
        1, ge=0, le=256, description="Minimum CPU workers on this host; each runs a single task at a time."
    )
    cpu_workers_max: int = Field(2, ge=1, le=256, description="Maximum CPU workers on this host, when work is queued.")
    scale_down_idle_s: float = Field(
        60.0, gt=0, description="Idle seconds after which an API or CPU worker above the minimum is stopped."
    )
    heartbeat_s: float = Field(1.0, gt=0, le=60, description="Seconds between two heartbeats of a worker.")
    heartbeat_ttl_s: float = Field(
        6.0, gt=0, le=600, description="Seconds after its last heartbeat until a worker counts as dead."
    )
    stop_grace_s: float = Field(
        30.0, gt=0, description="Seconds that a worker may take to finish its running chunk when it is stopped."
    )
    visibility_timeout_s: int = Field(
        7200, ge=60, description="Seconds after which the broker redelivers an unacknowledged message."
    )
    job_ttl_s: float = Field(7 * 86400, gt=0, description="TTL of a finished job and its results, in seconds.")
    rollout_idle_s: float = Field(
        86400, gt=0, description="Seconds without any request after which a rollout is ended."
    )
    cache_ttl_s: int = Field(
        30 * 86400, gt=0, description="TTL of a cached answer in seconds; Redis may evict it earlier."
    )
    idempotency_ttl_s: int = Field(
        14 * 86400, gt=0, description="TTL of an idempotency key in seconds; should be longer than the TTL of a job."
    )
    data_dir: Path = Field(
        Path("data"), description="Folder for the data of this host: embedded Redis, beat's schedule, logs."
    )
    storage_url: str = Field(
        default_factory=lambda data: (data["data_dir"].absolute() / "storage").as_uri(),
        description="Storage of large jobs: a folder (`file:///...`), or a URL that fsspec supports "
        "(`s3://bucket/prefix`, with its package installed). Every host must reach it.",
    )
    storage_shared: bool = Field(
        False, description="Whether a `file://` storage is the same folder on every host, such as a network mount."
    )
    storage_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Timeout of a read or write of the storage in seconds. A job waits for its storage "
        "without occupying a worker.",
    )
    stored_items: int = Field(
        10_000,
        ge=1,
        le=50_000,
        description="Jobs with more items than this are kept in the storage, smaller jobs in Redis.",
    )
    models_dir: Path = Field(
        default_factory=lambda data: data["data_dir"] / "models",
        description="Folder of models that jobs may name: `<name>/config.json`. `make up` puts the default models "
        "there.",
    )
    model_paths: str = Field(
        "",
        description="Folders below which jobs may name models by path, separated by commas. Empty: models are named "
        "by name only.",
    )
    model_memory_gb: float | None = Field(
        None, gt=0, description="Maximum memory of the models of a device slot in gigabytes; unset: the free memory."
    )
    hub_offline: bool = Field(False, description="Whether hub models are used only from earlier downloads.")
    rubrics_dir: Path | None = Field(
        None,
        description="Folder of rubrics for judges (`name.j2`), in addition to the built-in rubrics; "
        "must be the same on web and API workers.",
    )
    tokenizers_dir: Path | None = Field(
        None,
        description="Folder of tokenizers with which score jobs may count a response's tokens "
        "(`<name>/tokenizer.json`); must be the same on web and CPU workers.",
    )
    profiles_file: Path | None = Field(
        None,
        description="TOML file of the outside APIs that jobs may name. Unset: the only profile is `development`, the "
        "[development API](development_api.md).",
    )
    rewards_file: Path | None = Field(
        None,
        description="TOML file of the [named rewards](rewards.md) that trainers may name; read by the web process. "
        "Unset: no named rewards.",
    )
    development_api_port: int = Field(
        6010, ge=1, le=65535, description="Port on loopback of the development API, where it is used."
    )
    api_hosts: str = Field(
        "",
        description="Hosts allowed in URLs given by clients, separated by commas: `host`, `host:port`, `*.domain`. "
        "Empty: URLs given by clients are refused.",
    )
    policy_urls: str = Field(
        "",
        description="Policy servers on other hosts, separated by commas: `ws://host:port` or `host:port`. `GPU_HOST` "
        "and `GPU_PORTS=8000,8001` are supported too. Empty: this host starts its own server per device slot.",
    )
    policy_command: str = Field(
        "",
        description="Command that starts a policy server on this host, once per device slot; `{port}`, `{device}` "
        "and `{python}` are replaced. Empty: the [development policy](policies.md).",
    )
    policy_port: int = Field(
        8000,
        ge=1,
        le=65000,
        description="Port of the first policy server that this host starts; further servers use the following ports.",
    )
    policy_api_key: str = Field("", repr=False, description="Key for policy servers (`Authorization: Api-Key`).")
    policy_version: str = Field(
        "",
        description="Version of the policy, if the metadata of its servers does not name it. Episodes of an unknown "
        "version are not cached.",
    )
    policy_reply_s: float = Field(
        120.0,
        gt=0,
        description="Timeout of a call to a policy server, in seconds; includes compilation in the first call.",
    )
    policy_wait_s: float = Field(
        30.0, gt=0, description="Maximum seconds that an episode waits for an unavailable policy server."
    )
    policy_start_s: float = Field(
        900.0, gt=0, description="Maximum seconds from the start of a policy server by this host to its first answer."
    )
    policy_silent_s: float = Field(
        300.0,
        ge=2,
        description="Seconds after which a policy server that does not answer `/healthz` is restarted; must exceed "
        "its longest inference, during which it answers no request.",
    )
    policy_episodes: int = Field(
        4, ge=1, le=64, description="Maximum concurrent episodes per policy server, each with its own simulator."
    )
    simulators_min: int = Field(
        1, ge=0, le=64, description="Simulator processes that a device worker keeps while no episodes run."
    )
    episode_s: float = Field(1800.0, gt=0, description="Timeout of an episode, in seconds.")
    policy_environment: str = Field(
        "",
        description="Environment of the episodes of `POST /score`: `reach`, `libero`, or `gymnasium:` and an id. "
        "Empty: `reach` with the development policy, else `libero`.",
    )
    benchmarks: str = Field(
        "quick=0 3 * * *",
        description="[Benchmarks](benchmarks.md) that beat runs, with crontabs in UTC: `quick=0 3 * * *; full=0 4 * * "
        "sun`. Empty: no benchmarks. A benchmark that is due while users' work runs is skipped.",
    )
    simulated_journal: Path | None = Field(
        None, description="File to which the `simulated` kind appends a line per computed item; for tests."
    )
    simulated_slowdown: float = Field(
        1.0, gt=0, le=100, description="Factor by which the `simulated` kind is slower on this worker; for benchmarks."
    )
    traces_url: str = Field(
        "",
        description="OTLP/HTTP collector that receives [traces](traces.md): `http://host:4318`. Empty: tracing is "
        "off. Needs the extra that `make tracing` installs.",
    )
    traces_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of requests that are traced; for a request with a `traceparent`, its flag decides.",
    )
    embedded_state_mb: int = Field(
        2048, ge=16, description="Memory limit in megabytes of the state Redis that `make up` starts."
    )
    embedded_cache_mb: int = Field(
        256, ge=16, description="Memory limit in megabytes of the cache Redis that `make up` starts."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", description="Minimum level of logged messages."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Format of logs: text lines for people, or a JSON object per line."
    )

    @field_validator("redis_url", "cache_url")
    @classmethod
    def _is_redis_url(cls, value: str) -> str:
        if is_sentinel(value):
            SentinelUrl.parse(value)
            return value
        if not value.startswith(("redis://", "rediss://")):
            raise ValueError("must start with redis://, rediss:// or redis+sentinel://")
        return _whole_url(value)

    @field_validator("broker_url")
    @classmethod
    def _is_broker_url(cls, value: str) -> str:
        if is_sentinel(value):
            SentinelUrl.parse(value)
            return value
        if not value.startswith(("redis://", "rediss://", "amqp://", "amqps://")):
            raise ValueError("must start with redis://, rediss://, redis+sentinel://, amqp:// or amqps://")
        return _whole_url(value)

    @field_validator("storage_url")
    @classmethod
    def _is_storage_url(cls, value: str) -> str:
        if "://" not in value:
            raise ValueError("must be a URL such as file:///mnt/shared/assay or s3://bucket/prefix")
        return value

    @field_validator("traces_url")
    @classmethod
    def _is_a_collector(cls, value: str) -> str:
        if not value:
            return value
        if not value.startswith(("http://", "https://")):
            raise ValueError("must be the URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318")
        try:
            metadata.version(TRACING_PACKAGE)
        except metadata.PackageNotFoundError as error:
            raise ValueError(
                "traces need packages that are not installed: run `make tracing`, or "
                "`pip install -r requirements/tracing.txt`, or unset this variable"
            ) from error
        parts = urlsplit(_whole_url(value))
        return value if parts.path.strip("/") else urlunsplit(parts._replace(path="/v1/traces"))

    @field_validator("input_urls")
    @classmethod
    def _are_urls(cls, value: str) -> str:
        if any("://" not in each for each in value.split(",") if each.strip()):
            raise ValueError("must be URLs separated by commas, such as file:///data/contexts,s3://bucket/prefix")
        return value

    @field_validator("node")
    @classmethod
    def _is_node_name(cls, value: str) -> str:
        if not NODE_NAME.fullmatch(value):
            raise ValueError("must be at most 63 lower-case letters, digits and dashes, e.g. node1")
        return value

    @field_validator("slots")
    @classmethod
    def _is_slots(cls, value: str) -> str:
        if value and not SLOTS.fullmatch(value):
            raise ValueError("must be a number of workers such as 4, or cpu:4")
        return value

    @field_validator("policy_urls")
    @classmethod
    def _are_policy_urls(cls, value: str) -> str:
        return ",".join(dict.fromkeys(_policy_url(part.strip()) for part in value.split(",") if part.strip()))

    @field_validator("policy_environment")
    @classmethod
    def _is_an_environment(cls, value: str) -> str:
        if value and not ENVIRONMENT.fullmatch(value):
            raise ValueError("must be reach, libero, or gymnasium: followed by an id, such as gymnasium:Reacher-v5")
        return value

    @field_validator("policy_command")
    @classmethod
    def _has_a_port(cls, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be parsed as a shell command: {error}") from error
        if words and not any("{port}" in word for word in words):
            raise ValueError("must contain {port} as the placeholder of the server's port")
        return value

    @field_validator("benchmarks")
    @classmethod
    def _is_a_schedule(cls, value: str) -> str:
        parse_schedule(value)
        return value

    @field_validator("flower_basic_auth")
    @classmethod
    def _is_user_and_password(cls, value: str) -> str:
        if value and (not all(value.partition(":")) or "," in value):
            raise ValueError("must be user:password, without commas")
        return value

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        for low, high in (
            ("api_workers_min", "api_workers_max"),
            ("cpu_workers_min", "cpu_workers_max"),
        ):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{variable(low)} must not be greater than {variable(high)}")
        if self.heartbeat_ttl_s < 2 * self.heartbeat_s:
            raise ValueError("ASSAY_HEARTBEAT_TTL_S must be at least twice ASSAY_HEARTBEAT_S")
        ports = {"port": self.port, "flower_port": self.flower_port, "development_api_port": self.development_api_port}
        for one, other in combinations(ports, 2):
            if ports[one] == ports[other]:
                raise ValueError(f"{variable(one)} and {variable(other)} must differ")
        if not self.flower_basic_auth and self.flower_host not in LOOPBACK:
            raise ValueError(
                "ASSAY_FLOWER_HOST: Flower gives administrator access: set ASSAY_FLOWER_BASIC_AUTH to serve it beyond "
                "loopback"
            )
        if self.policy_urls and self.policy_command:
            raise ValueError(
                "ASSAY_POLICY_COMMAND: policy servers are either given (ASSAY_POLICY_URLS) or started by this host: "
                "unset either variable"
            )
        if not self.tokens_file and self.host not in LOOPBACK:
            raise ValueError(
                "ASSAY_HOST: without tokens the API serves only loopback: run `python -m web.tokens add NAME` and set "
                "ASSAY_TOKENS_FILE"
            )
        return self

    @property
    def uses_development_api(self) -> bool:
        """Whether verdicts come from the development API, which makes them meaningless."""
        return self.profiles_file is None

    @property
    def uses_development_policy(self) -> bool:
        """Whether episodes are run by the development policy, which makes success rates meaningless."""
        return not self.policy_urls and not self.policy_command

    @property
    def default_environment(self) -> dict[str, Any]:
        """Environment of `POST /score`, in the form of the scorer `policy`'s options."""
        default = "reach" if self.uses_development_policy else "libero"
        name, _, gymnasium_id = (self.policy_environment or default).partition(":")
        return {"name": name, "id": gymnasium_id} if gymnasium_id else {"name": name}

    @property
    def development_api_url(self) -> str:
        return f"http://127.0.0.1:{self.development_api_port}/v1"


def _whole_url(value: str) -> str:
    try:
        has_host = bool(urlsplit(value).hostname) and urlsplit(value).port != 0
    except ValueError:
        has_host = False
    if not has_host:
        raise ValueError("must be a URL with a host and a valid port: %-escape special characters of the password")
    return value


def _policy_url(value: str) -> str:
    url = value if "://" in value else f"ws://{value}"
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or parts.username or parts.query or parts.fragment:
        raise ValueError(
            "must be URLs separated by commas, such as ws://gpu1:8000; put a key into ASSAY_POLICY_API_KEY"
        )
    return url.rstrip("/")


def _given_ports(environment: Mapping[str, str]) -> dict[str, str]:
    """Read `GPU_HOST` and `GPU_PORTS`, which robotics projects often set; Assay's own variables take precedence."""
    ports = environment.get("GPU_PORTS", "")
    if not ports or environment.get(variable("policy_urls")) or environment.get(variable("policy_command")):
        return {}
    host = environment.get("GPU_HOST") or "127.0.0.1"
    return {"policy_urls": ",".join(f"{host}:{port.strip()}" for port in ports.split(",") if port.strip())}


def variable(field: str) -> str:
    """Return the name of a field's environment variable."""
    return PREFIX + field.upper()


def load_settings(**given: Any) -> Settings:
    """Load settings from the environment; `given` fields win. Raises SettingsError with a line per mistake."""
    mistakes = _unknown_variables(os.environ)
    try:
        settings = Settings(**_given_ports(os.environ) | given)
    except ValidationError as error:
        mistakes += [
            _sentence(detail["loc"], detail["msg"], detail.get("input"))
            for detail in error.errors()
            if detail["type"] != "default_factory_not_called"  # a consequence of another field's error
        ]
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return settings


def _unknown_variables(environment: Mapping[str, str]) -> list[str]:
    known = [variable(name) for name in Settings.model_fields]
    lines = []
    for name in environment:
        if name.startswith(PREFIX) and name not in (*known, *CLIENT_VARIABLES):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "see docs/settings.md."
            lines.append(f"{name} is not a setting; {hint}")
    return lines


def _sentence(location: tuple[int | str, ...], message: str, value: object) -> str:
    message = message.removeprefix("Value error, ")
    if not location:  # the message of a check over several fields already names the fields
        return message
    # Never show URLs, which may contain passwords, or keys.
    shown = "" if any(word in str(location[0]) for word in ("url", "auth", "key")) else f" (it is {value!r})"
    return f"{variable(str(location[0]))}: {message[0].lower()}{message[1:]}{shown}"


_DERIVED = {
    "broker_url": "`ASSAY_REDIS_URL`",
    "cache_url": "`ASSAY_REDIS_URL`",
    "node": "the host name",
    "storage_url": "`storage` in `ASSAY_DATA_DIR`",
    "models_dir": "`models` in `ASSAY_DATA_DIR`",
}


def as_markdown() -> str:
    """Return the table of settings for docs/settings.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = _DERIVED.get(name) or (f"`{field.default}`" if field.default != "" else "empty")
        rows.append(f"| `{variable(name)}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def write_table(page: Path) -> None:
    """Replace the table of settings in a Markdown page."""
    text = page.read_text()
    start, end = text.index("| variable |"), text.rindex("|\n") + 2
    page.write_text(text[:start] + as_markdown() + text[end:])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write_table(Path(sys.argv[2]))
    else:
        print(as_markdown(), end="")
