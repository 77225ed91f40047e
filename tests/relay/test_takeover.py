"""The recovery of orphaned partitions: what happens when one cannot be delivered here."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import accept, make_queue
from tests.kit.relay import relaying, staged
from tests.kit.servers import SHARED, queue_settings
from tests.kit.shared_relays import shared_settings
from zonemta_py.config.schema import Config
from zonemta_py.config.values import Seconds
from zonemta_py.core.errors import ConfigError, LocalError, QueueUnavailable
from zonemta_py.relay.takeover import OrphanRecovery
from zonemta_py.storage.interface import Store
from zonemta_py.storage.open import open_shared_storage


async def with_mail(directory: Path, kind: str, zone: str = "default") -> Any:
    """Shared storage with one partition, which has mail and no relay."""
    queue = make_queue(directory, lambda: 1_800_000_000_000, store=kind)
    await queue.recover()
    await accept(queue, "u@x.example", zone=zone)
    await queue.close()
    return open_shared_storage(queue_settings(directory, kind))


class FailingRelay:
    """A takeover relay that cannot start."""

    def __init__(self, queue: Any = None) -> None:
        self.queue = queue

    async def start(self) -> None:
        raise LocalError("not here")

    async def reload(self, config: Config) -> None:
        """Do nothing."""

    async def flush(self) -> int:
        """Return that no recipient woke."""
        return 0

    async def stop(self, grace_s: float | None = None) -> None:
        """Do nothing."""


class RelayWithoutLease(FailingRelay):
    """A takeover relay that has lost the lease of its partition."""

    class queue:
        failure = QueueUnavailable("the lease is lost")

    def __init__(self) -> None:
        """Its queue is that of the class."""

    async def start(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("how", ["make", "start", "lost"])
async def test_a_partition_is_released(directory: Path, kind: str, how: str) -> None:
    """After any failure another relay can open it at once, and this one continues to look."""
    opened: list[str] = []

    def make_relay(store: Store, name: str) -> FailingRelay:
        opened.append(name)
        if how == "make":
            raise OSError("no space left")
        return FailingRelay() if how == "start" else RelayWithoutLease()

    storage = await with_mail(directory, kind)
    recovery = OrphanRecovery(storage, queue_settings(directory, kind).shared, make_relay)
    await recovery.start()
    await until(lambda: opened and not recovery.names, "the partition to be released")
    await asyncio.to_thread(lambda: storage.open("one").close())
    assert opened == ["one"]
    await recovery.close()


@pytest.mark.parametrize("kind", SHARED)
async def test_its_own_partition_is_left(directory: Path, kind: str) -> None:
    """It has lost the lease, and its queue is opened again by itself: two exporters would write one event log."""
    looks: list[list[str]] = []
    storage = await with_mail(directory, kind)
    look = storage.orphans

    def orphans() -> list[str]:
        looks.append(look())
        return looks[-1]

    storage.orphans = orphans
    settings = replace(queue_settings(directory, kind).shared, poll=Seconds(0.01))
    recovery = OrphanRecovery(storage, settings, lambda store, name: FailingRelay(), own="one")
    await recovery.start()
    await until(lambda: len(looks) > 1, "two looks")
    assert looks[0] == ["one"]
    assert not recovery.names and not recovery._skipped_until
    await recovery.close()


async def test_a_relay_knows_its_own_partition(directory: Path) -> None:
    async with staged(directory) as stage, relaying(shared_settings(stage, "redis", "one")) as relay:
        assert relay._orphans is not None and relay._orphans._own == "one"


class RelayUnderCommand(FailingRelay):
    """A takeover relay that notes what it is asked, and refuses the second configuration."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(failure=None))
        self.configured: list[object] = []

    async def start(self) -> None:
        """Do nothing."""

    async def reload(self, config: Config) -> None:
        """Note the configuration."""
        if self.configured:
            raise ConfigError("zone 'x' has mail")
        self.configured.append((config.hostname, config.queue.directory.name))

    async def flush(self) -> int:
        """Return a number of recipients."""
        if len(self.configured) > 1:
            raise QueueUnavailable("the lease is lost")
        return 3


async def test_reload_and_flush_reach_it(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each partition that is delivered gets the configuration; one that refuses it is named in the log."""
    relay = RelayUnderCommand()
    storage = await with_mail(directory, "redis")
    config = Config(hostname="new.example", queue=queue_settings(directory, "redis"))
    recovery = OrphanRecovery(storage, config.queue.shared, lambda store, name: relay)
    assert await recovery.flush() == 0
    await recovery.start()
    await until(lambda: recovery._relays, "the take-over")
    await recovery.reload(config)
    assert relay.configured == [("new.example", "one")]
    assert await recovery.flush() == 3
    await recovery.reload(config)
    assert "the queue of one keeps its configuration: zone 'x' has mail" in caplog.text
    await recovery.close()
    assert not recovery._relays


@pytest.mark.parametrize("kind", SHARED)
async def test_mail_for_programs_is_left(directory: Path, kind: str) -> None:
    """The relay does not deliver a zone that programs dequeue."""
    opened: list[str] = []
    storage = await with_mail(directory, kind, "archive")
    settings = queue_settings(directory, kind).shared
    recovery = OrphanRecovery(
        storage, settings, lambda store, name: opened.append(name) or FailingRelay(), {"archive"}
    )
    store = await asyncio.to_thread(storage.open, "one")
    exported = [(key, None) for key in store.keys(b"outbox/", b"outbox/\xff")]
    store.write(store.batch(exported, sync=True))
    store.close()
    await recovery.start()
    await until(lambda: "one" in recovery._skipped_until, "the partition to be skipped")
    assert opened == []
    await recovery.close()


async def test_with_an_http_listener(directory: Path) -> None:
    """The takeover relay does not open a second one."""
    async with staged(directory) as stage:
        sink = await stage.receiver("d.example")
        queue = make_queue(directory / "queue", lambda: 1_800_000_000_000, store="redis")
        await queue.recover()
        await accept(queue, "u@d.example")
        await queue.close()
        config = shared_settings(
            stage,
            "redis",
            "two",
            admin={"address": "127.0.0.1:0", "mail": True, "mail_without_token": True},
        )
        other = queue_settings(directory / "queue", "redis")
        config = replace(config, queue=replace(config.queue, redis=other.redis))
        async with relaying(config):
            await until(lambda: sink.tally.messages == 1, "the mail of the other relay")
