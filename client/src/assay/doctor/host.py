"""Checks of a host of the server: Python, packages, ports, Redis, GPUs and disk. Imports no module of the server."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

from assay.doctor.finding import Finding, fail, ok, skip, warn

OLDEST_PYTHON = (3, 11)
#: Import names of the packages that the processes of a host need.
PACKAGES = ("celery", "redis", "pydantic_settings", "flask", "gunicorn", "flower", "psutil", "openai", "torch")
LOW_DISK_GB, NO_DISK_GB = 5.0, 1.0
_PROBE = """
import sys, importlib.util
print(*sys.version_info[:2])
print(*[name for name in sys.argv[1:] if not importlib.util.find_spec(name)])
"""


def is_checkout(folder: Path) -> bool:
    return (folder / "config" / "settings.py").is_file() and (folder / "Procfile").is_file()


def check(folder: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    if not is_checkout(folder):
        yield skip("this host", "the folder is not a server checkout; --checkout gives its path")
        return
    variables = {**_written_variables(folder), **environment}
    yield from _python(folder)
    api_port = int(variables.get("ASSAY_PORT") or 6006)
    yield from _port("API port", variables.get("ASSAY_HOST", "127.0.0.1"), api_port, "ASSAY_PORT")
    flower_port = int(variables.get("ASSAY_FLOWER_PORT") or 5555)
    flower_host = variables.get("ASSAY_FLOWER_HOST", "127.0.0.1")
    yield from _port("Flower port", flower_host, flower_port, "ASSAY_FLOWER_PORT")
    names = ("ASSAY_REDIS_URL", "ASSAY_BROKER_URL", "ASSAY_CACHE_URL")
    urls = dict.fromkeys(variables[name] for name in names if variables.get(name, "").startswith("redis://"))
    for url in urls:
        yield redis(url)
    if not urls:
        yield skip("Redis", "ASSAY_REDIS_URL is not set; `make up` starts its own Redis")
    yield from gpus()
    yield _disk(folder / variables.get("ASSAY_DATA_DIR", "data"))


def _written_variables(folder: Path) -> dict[str, str]:
    """Read the environment variables that a running `make up` writes to data/env."""
    try:
        text = (folder / "data" / "env").read_text(encoding="utf-8")
    except OSError:
        return {}
    return {name: value.strip("'\"") for name, value in re.findall(r"(?m)^(?:export )?(ASSAY_\w+)=(.*)$", text)}


def _python(folder: Path) -> Iterator[Finding]:
    own = folder / ".venv" / "bin" / "python"
    python = str(own) if own.exists() else sys.executable
    try:
        run = subprocess.run([python, "-c", _PROBE, *PACKAGES], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield fail("Python", f"{python} cannot be started: {error}", "remove .venv and run `make up` again")
        return
    version, missing = [*run.stdout.split("\n"), ""][:2]
    found = tuple(int(part) for part in version.split())
    shown = f"{'.'.join(map(str, found))} ({python})"
    if found < OLDEST_PYTHON:
        yield fail("Python", shown, "the server needs 3.11 or newer: make up PYTHON=/path/to/python3.12")
    else:
        yield ok("Python", shown)
    if missing:
        fix = "pip install -r requirements/local.txt, or `make up`; a web-only host does not need torch, flower, openai"
        yield warn("packages", f"not installed: {missing.replace(' ', ', ')}", fix)
    else:
        yield ok("packages", f"{len(PACKAGES)} of {len(PACKAGES)} are installed")


def _port(name: str, host: str, port: int, variable: str) -> Iterator[Finding]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            taken = f"{host}:{port} is in use"
            if variable == "ASSAY_FLOWER_PORT":
                yield ok(name, f"{taken}, which is correct if Flower runs")
            elif _is_assay(host, port):
                yield ok(name, f"{taken} by Assay")
            else:
                fix = f"stop that program, or set {variable}"
                yield fail(name, f"{taken} by another program ({error.strerror})", fix)
            return
    yield ok(name, f"{host}:{port} is free")


def _is_assay(host: str, port: int) -> bool:
    at = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
    try:
        with urlopen(f"http://{at}:{port}/health", timeout=3) as reply:
            return bool(reply.read(3).strip(b'"')[:2] == b"ok")
    except OSError:
        return False


def redis(url: str) -> Finding:
    """Check a Redis server by PING, encoded by hand because the client does not depend on a Redis library."""
    parts = urlsplit(url)
    shown = f"{parts.hostname}:{parts.port or 6379}"
    login = [unquote(word) for word in (parts.username, parts.password) if word]
    commands = ([["AUTH", *login]] if login else []) + [["PING"]]
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 6379), timeout=3) as connection:
            for words in commands:
                connection.sendall(b"*%d\r\n" % len(words))
                for word in words:
                    connection.sendall(b"$%d\r\n%b\r\n" % (len(word.encode()), word.encode()))
                answer = connection.recv(200).decode("utf-8", "replace").strip()
    except OSError as error:
        return fail("Redis", f"{shown} does not respond ({error})", "start it, or correct ASSAY_REDIS_URL")
    if answer.startswith("-"):
        fix = "set ASSAY_REDIS_URL to redis://:PASSWORD@host:port/0"
        return fail("Redis", f"{shown} responds with an error: {answer[1:]}", fix)
    return ok("Redis", f"{shown} responds")


def gpus() -> Iterator[Finding]:
    query = ["nvidia-smi", "--query-gpu=index,name,memory.used,memory.total", "--format=csv,noheader,nounits"]
    if not shutil.which("nvidia-smi"):
        yield skip("GPUs", "nvidia-smi is not installed; device slots run on the CPU")
        return
    try:
        run = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield fail(
            "GPUs",
            f"nvidia-smi fails: {error}",
            "repair the driver (see `nvidia-smi` and `dmesg`); until then set ASSAY_SLOTS=cpu:N",
        )
        return
    for line in run.stdout.splitlines():
        index, name, used, total = ([part.strip() for part in line.split(",")] + [""] * 4)[:4]
        shown = f"{index} {name}, {used} of {total} MB in use"
        if used.isdigit() and total.isdigit() and int(used) > 0.9 * int(total):
            fix = "find the process that uses it (`nvidia-smi`), or exclude the GPU with CUDA_VISIBLE_DEVICES"
            yield warn("GPUs", shown, fix)
        else:
            yield ok("GPUs", shown)


def _disk(folder: Path) -> Finding:
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    free_gb = shutil.disk_usage(existing).free / 1e9
    shown = f"{free_gb:.1f} GB free for {os.fspath(folder)}"
    if free_gb < NO_DISK_GB:
        return fail("disk", shown, "free disk space: Redis refuses writes when its disk is full")
    return warn("disk", shown, "free disk space soon") if free_gb < LOW_DISK_GB else ok("disk", shown)
