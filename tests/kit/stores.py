"""Stores below the queue: written and read as a whole, and servers that a test may stop."""

import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from tests.kit.deadlines import until_blocking
from tests.kit.servers import DURABLE, queue_settings, start_objects, start_redis
from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.errors import QueueLocked
from zonemta_py.queue.format import keys
from zonemta_py.storage.interface import Store
from zonemta_py.storage.remote import RemoteBodyStore
from zonemta_py.storage.shared import SharedStorage

CHUNK = keys.chunk_key("0" * 24, 1)
MARK = keys.mark_key("0" * 24)  # a key that makes a partition one with mail

Process = subprocess.Popen[bytes]


def put(store: Store, values: Mapping[bytes, bytes | None]) -> None:
    """Write one batch."""
    store.write(store.batch(values.items(), sync=True))


def content(store: Store) -> dict[bytes, bytes]:
    """Every key and value."""
    return dict(store.scan(b"", b"\xff\xff"))


def replaced(record: Any, **changes: Any) -> Any:
    """A copy of a dataclass with ``changes``."""
    return dataclasses.replace(record, **changes)


def own_server(directory: Path, kind: str) -> tuple[QueueSettings, Process]:
    """Settings of a queue on a server that no other test uses, and the server's process."""
    settings = queue_settings(directory, "memory")
    if kind == "redis":
        port, process = start_redis(*DURABLE)
        redis = replaced(settings.redis, url=f"redis://127.0.0.1:{port}/0")
        return replaced(settings, store=kind, redis=redis), process
    endpoint, process = start_objects()
    s3 = replaced(settings.s3, bucket="queues", endpoint=endpoint)
    return replaced(settings, store=kind, s3=s3), process


def kill(process: Process) -> None:
    """End a server."""
    process.kill()
    process.wait()


@contextmanager
def suspended(process: Process) -> Iterator[None]:
    """A server that does not answer: its connections stay open."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def stop_renewing(store: Store) -> None:
    """What happens on a machine that hangs."""
    cast(RemoteBodyStore, store)._lease.stop_renewing()


def open_in_time(storage: SharedStorage) -> Store:
    """The partition ``one``, once its lease has expired."""
    opened: list[Store] = []

    def is_open() -> bool:
        with suppress(QueueLocked):
            opened.append(storage.open("one"))
        return bool(opened)

    until_blocking(is_open, "the lease to expire")
    return opened[0]
