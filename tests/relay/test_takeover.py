"""Take-over by itself: what happens when a part cannot be delivered here."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deadlines import until
from tests.kit.queue import accept, make_queue
from tests.kit.relay import relaying, staged
from tests.kit.servers import SHARED, queue_settings
from tests.services.test_takeover import settings
from zonemta_py.core.errors import LocalError, QueueUnavailable
from zonemta_py.relay.takeover import OrphanRecovery
from zonemta_py.storage.interface import Store
from zonemta_py.storage.open import open_shared_storage


async def with_mail(folder: Path, kind: str, zone: str = "default") -> Any:
    """A place with mail in one part, and nobody at it."""
    queue = make_queue(folder, lambda: 1_800_000_000_000, store=kind)
    await queue.recover()
    await accept(queue, "u@x.example", zone=zone)
    await queue.close()
    return open_shared_storage(queue_settings(folder, kind))


class Fails:
    """A deputy that cannot start."""

    def __init__(self, queue: Any = None) -> None:
        self.queue = queue

    async def start(self) -> None:
        raise LocalError("not here")

    async def stop(self, grace_s: float | None = None) -> None:
        """Nothing was begun."""


class Broken(Fails):
    """A deputy whose queue cannot be written any more."""

    class queue:
        failure = QueueUnavailable("the lease is lost")

    def __init__(self) -> None:
        """Nothing."""

    async def start(self) -> None:
        """It begins."""


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("how", ["make", "start", "lost"])
async def test_a_part_is_given_back(folder: Path, kind: str, how: str) -> None:
    """Whatever goes wrong: another relay may have it at once, and this one looks on."""
    asked: list[str] = []

    def deputy(store: Store, name: str) -> Fails:
        asked.append(name)
        if how == "make":
            raise OSError("no space left")
        return Fails() if how == "start" else Broken()

    place = await with_mail(folder, kind)
    taker = OrphanRecovery(place, queue_settings(folder, kind).shared, deputy)
    taker.start()
    await until(lambda: asked and not taker.names, "the part to be given back")
    await asyncio.to_thread(lambda: place.open("one").close())
    assert asked == ["one"]
    await taker.close()


@pytest.mark.parametrize("kind", SHARED)
async def test_mail_for_programs_is_left(folder: Path, kind: str) -> None:
    """A zone that programs dequeue has nobody here who would deliver it."""
    asked: list[str] = []
    place = await with_mail(folder, kind, "archive")
    settings = queue_settings(folder, kind).shared
    taker = OrphanRecovery(
        place, settings, lambda store, name: asked.append(name) or Fails(), {"archive"}
    )
    store = await asyncio.to_thread(place.open, "one")
    exported = [(key, None) for key in store.keys(b"outbox/", b"outbox/\xff")]
    store.write(store.batch(exported, sync=True))
    store.close()
    taker.start()
    await until(lambda: "one" in taker._refused, "a look at it")
    assert asked == []
    await taker.close()


async def test_beside_a_door_for_http(folder: Path) -> None:
    """The deputy does not open it a second time."""
    async with staged(folder) as stage:
        sink = await stage.receiver("d.example")
        queue = make_queue(folder / "queue", lambda: 1_800_000_000_000, store="redis")
        await queue.recover()
        await accept(queue, "u@d.example")
        await queue.close()
        config = settings(stage, "redis", "two", admin={"address": "127.0.0.1:0", "mail": True})
        from dataclasses import replace

        place = queue_settings(folder / "queue", "redis")
        config = replace(config, queue=replace(config.queue, redis=place.redis))
        async with relaying(config):
            await until(lambda: sink.tally.messages == 1, "the mail of the other")
