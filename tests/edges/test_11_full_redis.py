"""11. A Redis whose memory is full refuses new mail, and can be opened, drained and used again."""

import logging
from pathlib import Path

import pytest

from tests.kit.deadlines import eventually, until
from tests.kit.queue import accept, begin, lease, settle
from tests.kit.relay import empty, relaying, send, staged
from tests.kit.servers import DURABLE, start_redis
from tests.kit.smtp_client import RawClient
from zonemta_py.config.schema import QueueSettings, RedisSettings
from zonemta_py.core.errors import LocalError, QueueUnavailable
from zonemta_py.core.model import OutcomeKind
from zonemta_py.queue.queue import Queue, QueueOptions
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.storage import redis as redis_store
from zonemta_py.storage.open import open_store

LIMIT = 8 << 20
BODY = b"a line of the body\r\n" * 3000


def small_redis() -> int:
    """The port of a Redis with little memory."""
    return start_redis(*DURABLE, "--maxmemory", str(LIMIT), "--maxmemory-policy", "noeviction")[0]


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "LOOK_EVERY_S", 0.02)


async def opened(settings: QueueSettings) -> Queue:
    store = open_store(settings)
    queue = Queue(store, begin_boot(store), QueueOptions(), lambda zone, domain: domain)
    await begin(queue)
    return queue


async def test_a_full_queue_is_drained(directory: Path) -> None:
    """Until nothing more is accepted; then it is opened again, every message delivered, and more accepted."""
    port = small_redis()
    settings = QueueSettings(
        directory=directory, store="redis", redis=RedisSettings(f"redis://127.0.0.1:{port}/0")
    )
    queue = await opened(settings)
    accepted = 0
    with pytest.raises(QueueUnavailable, match="the store is full"):
        while accepted < 2000:
            await accept(queue, f"u{accepted}@x.example", body=BODY)
            accepted += 1
    assert queue.failure is None, "the queue goes on"
    await queue.close()
    queue = await opened(settings)
    delivered = 0
    while (held := queue.lease("default", "x.example", 100)) is not None:
        await queue.start(held)
        await settle(queue, held, OutcomeKind.DELIVERED)
        delivered += 1
    assert delivered == accepted > 10

    def has_space() -> bool:
        space = queue.store.space()
        return space is not None and space.free > LIMIT // 2

    await until(has_space, "free memory")
    await accept(queue, "last@x.example", body=BODY)
    await settle(queue, lease(queue, "x.example"), OutcomeKind.DELIVERED)
    await queue.close()


@pytest.mark.parametrize("receivers", [0, 1])
async def test_a_reserve(directory: Path, receivers: int) -> None:
    """New mail is refused with 452 before the memory is full, and accepted when there is more again."""
    port = small_redis()
    async with staged(directory) as stage:
        sink = await stage.receiver("a.example")
        config = stage.config(
            queue={"directory": "queue", "store": "redis", "redis": {"url": f"redis://127.0.0.1:{port}/0"}},
            processes={"receivers": receivers, "senders": 0},
        )  # fmt: skip
        async with relaying(config) as relay:
            await send(relay, ["u0@a.example"], BODY)
            await until(lambda: sink.messages, "the delivery")
            await empty(relay)
            store = relay.queue.store
            assert isinstance(store, redis_store.RedisStore)
            commands = store._client.commands

            async def reply() -> str:
                async with await RawClient.connect(relay.addresses[0].port) as client:
                    await client.ehlo()
                    return await client.command("MAIL FROM:<s@a.example>")

            async def refused() -> bool:
                used = store._client.run(commands.info("memory"))["used_memory"]  # it varies
                store._client.run(commands.config_set("maxmemory", used + 10_000))
                return (await reply()).startswith("452 4.3.1")

            async def accepted() -> bool:
                return (await reply()).startswith("250")

            await eventually(refused, "a refusal")
            store._client.run(commands.config_set("maxmemory", LIMIT))
            await eventually(accepted, "mail to be accepted")
            await send(relay, ["u1@a.example"], BODY)
            await until(lambda: len(sink.messages) == 2, "the second delivery")


async def test_settings_that_change(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are looked at again while the relay runs; `volatile-*` is refused at the start like any other."""
    port = small_redis()
    redis = RedisSettings(f"redis://127.0.0.1:{port}/0")
    settings = QueueSettings(directory=directory, store="redis", redis=redis)
    store = open_store(settings)
    assert isinstance(store, redis_store.RedisStore)
    with caplog.at_level(logging.CRITICAL):
        store._client.run(store._client.commands.config_set("maxmemory-policy", "volatile-lru"))
        await until(lambda: "maxmemory-policy noeviction" in caplog.text, "the log")
    store.close()
    with pytest.raises(LocalError, match="maxmemory-policy noeviction"):
        open_store(settings)
