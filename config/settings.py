"""Every setting of Assay, read from `ASSAY_*` variables by `load_settings()`.

Only entry points call it (`web/wsgi.py`, `workers/main.py`, `workers/launch.py`, ...); all else is handed the result.
`python -m config.settings` prints the table that docs/settings.md holds; `make docs` writes it there.
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

from config.schedule import parse_schedule

PREFIX = "ASSAY_"
NODE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
#: Read by the client (`client/`), which may share its environment with a server.
CLIENT_VARIABLES = ("ASSAY_URL", "ASSAY_TOKEN", "ASSAY_REWARD")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
#: Said wherever people look, while no API is configured.
DEVELOPMENT_NOTE = "judging uses the development API: scores mean nothing"
DEVELOPMENT_POLICY_NOTE = "episodes are run by the development policy: success rates mean nothing"
#: `reach`, `libero`, or `gymnasium:` and an id.
ENVIRONMENT = re.compile(r"reach|libero|gymnasium:[\w.:/-]{1,100}")
#: Of the extra that traces need.
TRACING_PACKAGE = "opentelemetry-exporter-otlp-proto-http"
SLOTS = re.compile(r"(cpu:)?[1-9][0-9]{0,3}")


class SettingsError(Exception):
    """A setting has a value that cannot be used."""


def default_node() -> str:
    """This host's name in the form a queue name allows."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:63] or "node"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, allow_inf_nan=False
    )

    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="Redis that holds the state: jobs, leases, the worker registry. Must not evict (`noeviction`).",
    )
    broker_url: str = Field(
        default_factory=lambda data: data["redis_url"],
        description="What Celery's queues live in: Redis, or RabbitMQ (`amqp://`).",
    )
    cache_url: str = Field(
        default_factory=lambda data: data["redis_url"],
        description="Redis that holds cached results; may evict.",
    )
    node: str = Field(
        default_factory=default_node,
        description="Stable name of this host in queue names (`gpu.<node>.<n>`): lower case, digits and dashes.",
    )
    slots: str = Field(
        "",
        description="How many device workers this host runs: `N`, or `cpu:N` to leave its GPUs alone. "
        "Empty: one per GPU, or two CPU slots where there is none.",
    )
    host: str = Field(
        "127.0.0.1", description="Address the API listens on. Beyond loopback only with `ASSAY_TOKENS_FILE`."
    )
    port: int = Field(6006, ge=1, le=65535, description="Port the API and the dashboard listen on.")
    web_processes: int = Field(1, ge=1, le=64, description="gunicorn processes of the API.")
    web_threads: int = Field(
        320,
        ge=8,
        le=2048,
        description="Threads of each gunicorn process. An open event stream, and a submit or a trainer that waits, "
        "hold one each, and may have seven of eight.",
    )
    tokens_file: Path | None = Field(
        None,
        description="File of bearer tokens, hashed; `python -m web.tokens add NAME` writes it. "
        "Unset: no token is asked for, and only loopback is served.",
    )
    max_body_mb: float = Field(64, gt=0, description="Megabytes of a JSON body at most, unpacked.")
    max_upload_mb: float = Field(10_240, gt=0, description="Megabytes of a JSONL body at most, unpacked.")
    max_item_mb: float = Field(8, gt=0, description="Megabytes of one item, or one line, at most.")
    max_items: int = Field(50_000, ge=1, description="Items of a JSON body at most; JSONL may have more.")
    input_urls: str = Field(
        "",
        description="Places that a job's `items_url` may name, by commas: `file:///data/contexts`, "
        "`s3://bucket/prefix`, with its package installed. Empty: none.",
    )
    weights_urls: str = Field(
        "",
        description="Places that the weights of a rollout's version may lie in, by commas: `file:///data/weights`, "
        "`s3://bucket/prefix`. Empty: none; weights are uploaded.",
    )
    max_wait_s: float = Field(300, ge=0, description="Seconds a submit may wait for its results at most.")
    score_wait_s: float = Field(1790, ge=0, description="Seconds that `POST /score` may take; episodes take long.")
    backlog_items: int = Field(
        20_000_000, ge=1, description="Items that may wait before new jobs are refused for a while (503)."
    )
    flower_host: str = Field("127.0.0.1", description="Address Flower listens on.")
    flower_port: int = Field(5555, ge=1, le=65535, description="Port Flower listens on.")
    flower_basic_auth: str = Field(
        "",
        repr=False,
        description="`user:password` for Flower. Empty: no password, loopback only; where there are tokens, one is "
        "made and kept in `flower_auth` of `ASSAY_DATA_DIR`.",
    )
    flower_read_only: bool = Field(
        True, description="Whether Flower only shows. If not, whoever reaches it can stop workers and run any task."
    )
    api_workers_min: int = Field(1, ge=0, le=256, description="API worker processes kept running on this host.")
    api_workers_max: int = Field(2, ge=1, le=256, description="API worker processes at most, when work is queued.")
    api_threads: int = Field(16, ge=1, le=512, description="Tasks one API worker process runs at a time.")
    cpu_workers_min: int = Field(
        1, ge=0, le=256, description="CPU workers kept running on this host; each runs one task at a time."
    )
    cpu_workers_max: int = Field(2, ge=1, le=256, description="CPU workers at most, when work is queued.")
    scale_down_idle_s: float = Field(
        60.0, gt=0, description="Seconds an API or CPU worker above the minimum stays idle before it is stopped."
    )
    heartbeat_s: float = Field(1.0, gt=0, le=60, description="Seconds between two heartbeats of a worker.")
    heartbeat_ttl_s: float = Field(
        6.0, gt=0, le=600, description="Seconds after its last heartbeat when a worker counts as gone."
    )
    stop_grace_s: float = Field(
        30.0, gt=0, description="Seconds a worker may take to finish its running chunk when it is told to stop."
    )
    visibility_timeout_s: int = Field(
        7200, ge=60, description="Seconds after which the broker delivers an unacknowledged message again."
    )
    job_ttl_s: float = Field(7 * 86400, gt=0, description="Seconds an ended job and its results are kept.")
    rollout_idle_s: float = Field(
        86400, gt=0, description="Seconds after which a rollout is ended that nobody has asked anything."
    )
    cache_ttl_s: int = Field(30 * 86400, gt=0, description="Seconds a cached answer is kept, if not evicted earlier.")
    idempotency_ttl_s: int = Field(
        14 * 86400, gt=0, description="Seconds an idempotency key is remembered; longer than a job is kept."
    )
    data_dir: Path = Field(
        Path("data"), description="Folder for what this host keeps: embedded Redis, beat's schedule, logs."
    )
    storage_url: str = Field(
        default_factory=lambda data: (data["data_dir"].absolute() / "storage").as_uri(),
        description="Where large jobs are kept: a folder (`file:///...`), or what fsspec knows (`s3://bucket/prefix`, "
        "with its package installed). All hosts must reach it.",
    )
    storage_shared: bool = Field(
        False, description="Whether a `file://` storage is one folder for all hosts, such as a network mount."
    )
    stored_items: int = Field(
        10_000,
        ge=1,
        le=50_000,
        description="Jobs with more items than this are kept in the storage, smaller ones in Redis.",
    )
    models_dir: Path = Field(
        default_factory=lambda data: data["data_dir"] / "models",
        description="Folder of models that jobs may name: `<name>/config.json`. `make up` puts its own there.",
    )
    model_paths: str = Field(
        "", description="Folders, by commas, below which jobs may name models by their path. Empty: by name only."
    )
    model_memory_gb: float | None = Field(
        None, gt=0, description="Gigabytes that all models of one device slot may take; unset: what is free."
    )
    hub_offline: bool = Field(
        False, description="Whether models of a hub are used only as far as they were downloaded before."
    )
    rubrics_dir: Path | None = Field(
        None,
        description="Folder of rubrics for judges (`name.j2`), beside those that come with Assay; "
        "the same on web and API workers.",
    )
    tokenizers_dir: Path | None = Field(
        None,
        description="Folder of tokenizers that score jobs may count a response's tokens with "
        "(`<name>/tokenizer.json`); the same on web and CPU workers.",
    )
    profiles_file: Path | None = Field(
        None,
        description="TOML file of the outside APIs that jobs may name. Unset: there is one, named `development`, the "
        "[development API](development_api.md).",
    )
    rewards_file: Path | None = Field(
        None,
        description="TOML file of the [named rewards](rewards.md) that trainers may ask for; read by the web process. "
        "Unset: there is none.",
    )
    development_api_port: int = Field(
        6010, ge=1, le=65535, description="Port on loopback of the development API, where that is used."
    )
    api_hosts: str = Field(
        "",
        description="Hosts that a URL given by a client may name: `host`, `host:port`, `*.domain`, by commas. "
        "Empty: no URL of a client is called.",
    )
    policy_urls: str = Field(
        "",
        description="Policy servers that run elsewhere: `ws://host:port` or `host:port`, by commas. `GPU_HOST` and "
        "`GPU_PORTS=8000,8001` are understood too. Empty: this host starts its own, one per device slot.",
    )
    policy_command: str = Field(
        "",
        description="Command that starts a policy server on this host, once per device slot; `{port}`, `{device}` "
        "and `{python}` are filled in. Empty: the [development policy](policies.md).",
    )
    policy_port: int = Field(
        8000, ge=1, le=65000, description="Port of the first policy server that this host starts; the others follow."
    )
    policy_api_key: str = Field(
        "", repr=False, description="Key that policy servers ask for (`Authorization: Api-Key`)."
    )
    policy_version: str = Field(
        "",
        description="Version of the policy, where its servers do not say one in their metadata. While it is unknown "
        "their episodes are not cached.",
    )
    policy_reply_s: float = Field(
        120.0, gt=0, description="Seconds a policy server may take to answer; its first call may have to compile."
    )
    policy_wait_s: float = Field(30.0, gt=0, description="Seconds an episode waits for a policy server that is away.")
    policy_start_s: float = Field(
        900.0, gt=0, description="Seconds a policy server that this host starts may take until it first answers."
    )
    policy_silent_s: float = Field(
        300.0,
        ge=2,
        description="Seconds it may then leave `/healthz` unanswered before it is started anew: more than its longest "
        "inference, during which it answers nobody.",
    )
    policy_episodes: int = Field(
        4, ge=1, le=64, description="Episodes that share a policy server at most, each with its simulator."
    )
    simulators_min: int = Field(
        1, ge=0, le=64, description="Simulator processes that a device worker keeps when no episodes run."
    )
    episode_s: float = Field(1800.0, gt=0, description="Seconds an episode may take.")
    policy_environment: str = Field(
        "",
        description="Where policies act that `POST /score` runs: `reach`, `libero`, or `gymnasium:` and an id. Empty: "
        "`reach` with the development policy, else `libero`.",
    )
    benchmarks: str = Field(
        "quick=0 3 * * *",
        description="[Benchmarks](benchmarks.md) that beat runs, by crontabs in UTC: `quick=0 3 * * *; full=0 4 * * "
        "sun`. Empty: none. One that is due while users' work runs is skipped.",
    )
    simulated_journal: Path | None = Field(
        None, description="File that the `simulated` kind writes a line to for every item it computes; for tests."
    )
    simulated_slowdown: float = Field(
        1.0, gt=0, le=100, description="How many times slower the `simulated` kind is on this worker; for benchmarks."
    )
    traces_url: str = Field(
        "",
        description="Where [traces](traces.md) are sent: an OTLP/HTTP collector, `http://host:4318`. Empty: none are "
        "made. Needs the extra that `make tracing` installs.",
    )
    traces_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of requests that are traced; one that brings a `traceparent` says so itself.",
    )
    embedded_cache_mb: int = Field(256, ge=16, description="Memory of the cache Redis that `make up` starts.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="Least level that is logged.")
    log_format: Literal["text", "json"] = Field(
        "text", description="How processes log: lines for people, or one JSON object a line."
    )

    @field_validator("redis_url", "cache_url")
    @classmethod
    def _is_redis_url(cls, value: str) -> str:
        if not value.startswith(("redis://", "rediss://")):
            raise ValueError("must start with redis:// or rediss://")
        return _whole_url(value)

    @field_validator("broker_url")
    @classmethod
    def _is_broker_url(cls, value: str) -> str:
        if not value.startswith(("redis://", "rediss://", "amqp://", "amqps://")):
            raise ValueError("must start with redis://, rediss://, amqp:// or amqps://")
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
                "traces need packages that are not installed here: run `make tracing`, or "
                "`pip install -r requirements/tracing.txt`, or unset it"
            ) from error
        parts = urlsplit(_whole_url(value))
        return value if parts.path.strip("/") else urlunsplit(parts._replace(path="/v1/traces"))

    @field_validator("input_urls")
    @classmethod
    def _are_urls(cls, value: str) -> str:
        if any("://" not in each for each in value.split(",") if each.strip()):
            raise ValueError("must be URLs such as file:///data/contexts or s3://bucket/prefix, by commas")
        return value

    @field_validator("node")
    @classmethod
    def _is_node_name(cls, value: str) -> str:
        if not NODE_NAME.fullmatch(value):
            raise ValueError("must be lower-case letters, digits and dashes, 63 at most, e.g. node1")
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
            raise ValueError("must be reach, libero, or gymnasium: and an id, such as gymnasium:Reacher-v5")
        return value

    @field_validator("policy_command")
    @classmethod
    def _has_a_port(cls, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be read: {error}") from error
        if words and not any("{port}" in word for word in words):
            raise ValueError("must have {port} in it, where the server's port goes")
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
                "ASSAY_FLOWER_HOST: Flower is an admin's door; beyond loopback set ASSAY_FLOWER_BASIC_AUTH"
            )
        if self.policy_urls and self.policy_command:
            raise ValueError(
                "ASSAY_POLICY_COMMAND: policy servers are either given (ASSAY_POLICY_URLS) or started here, not both"
            )
        if not self.tokens_file and self.host not in LOOPBACK:
            raise ValueError(
                "ASSAY_HOST: without tokens the API stays on loopback; to serve beyond it, run "
                "`python -m web.tokens add NAME` and set ASSAY_TOKENS_FILE"
            )
        return self

    @property
    def uses_development_api(self) -> bool:
        """Whether judgements come from the development API, and so mean nothing."""
        return self.profiles_file is None

    @property
    def uses_development_policy(self) -> bool:
        """Whether episodes are run by the development policy, and so mean nothing."""
        return not self.policy_urls and not self.policy_command

    @property
    def default_environment(self) -> dict[str, Any]:
        """As the scorer `policy` takes it."""
        usual = "reach" if self.uses_development_policy else "libero"
        name, _, which = (self.policy_environment or usual).partition(":")
        return {"name": name, "id": which} if which else {"name": name}

    @property
    def development_api_url(self) -> str:
        return f"http://127.0.0.1:{self.development_api_port}/v1"


def _whole_url(value: str) -> str:
    try:
        has_host = bool(urlsplit(value).hostname) and urlsplit(value).port != 0
    except ValueError:
        has_host = False
    if not has_host:
        raise ValueError("must be a URL with host and port; special characters of a password are %-escaped")
    return value


def _policy_url(value: str) -> str:
    url = value if "://" in value else f"ws://{value}"
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or parts.username or parts.query or parts.fragment:
        raise ValueError("must be URLs such as ws://gpu1:8000, by commas; a key goes into ASSAY_POLICY_API_KEY")
    return url.rstrip("/")


def _given_ports(environment: Mapping[str, str]) -> dict[str, str]:
    """`GPU_HOST` and `GPU_PORTS`, which robotics set-ups have already, unless Assay's own variables say otherwise."""
    ports = environment.get("GPU_PORTS", "")
    if not ports or environment.get(variable("policy_urls")) or environment.get(variable("policy_command")):
        return {}
    host = environment.get("GPU_HOST") or "127.0.0.1"
    return {"policy_urls": ",".join(f"{host}:{port.strip()}" for port in ports.split(",") if port.strip())}


def variable(field: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field.upper()


def load_settings(**given: Any) -> Settings:
    """Settings from the environment; `given` fields win. Raises SettingsError with one line per mistake."""
    mistakes = _unknown_variables(os.environ)
    try:
        settings = Settings(**_given_ports(os.environ) | given)
    except ValidationError as error:
        mistakes += [
            _sentence(detail["loc"], detail["msg"], detail.get("input"))
            for detail in error.errors()
            if detail["type"] != "default_factory_not_called"  # follows from another field's mistake
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
            hint = f"did you mean {close[0]}?" if close else "docs/settings.md lists all."
            lines.append(f"{name} is not a setting; {hint}")
    return lines


def _sentence(location: tuple[int | str, ...], message: str, value: object) -> str:
    message = message.removeprefix("Value error, ")
    if not location:  # the message of a check over several fields names them itself
        return message
    # URLs may hold passwords, and keys are secret: never shown.
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
    """All settings as a table, for docs/settings.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = _DERIVED.get(name) or (f"`{field.default}`" if field.default != "" else "empty")
        rows.append(f"| `{variable(name)}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def write_table(page: Path) -> None:
    """Replace the table of a Markdown page by today's."""
    text = page.read_text()
    start, end = text.index("| variable |"), text.rindex("|\n") + 2
    page.write_text(text[:start] + as_markdown() + text[end:])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write_table(Path(sys.argv[2]))
    else:
        print(as_markdown(), end="")
