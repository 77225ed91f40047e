"""9. After a failed write the relay closes its queue, and goes on by itself once the store works again.

The causes are real: limits on a running process, and servers that are suspended.
"""

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.kit.deadlines import eventually, scaled, time_limit, until
from tests.kit.relay import Stage, logged_events, staged
from tests.kit.smtp_client import RawClient
from tests.kit.stores import kill, own_server, suspended
from zonemta_py.bench.process import CommandProcess, free_port

pytestmark = pytest.mark.timeout(300)
MESSAGE = b"Subject: s\r\n\r\n" + b"a line of the body\r\n" * 10_000 + b".\r\n"


class Served:
    """``zonemta serve`` on a stage."""

    def __init__(self, stage: Stage, **changes: object) -> None:
        self.directory = stage.directory
        self.port = free_port()
        stage.config(listeners=[{"address": f"127.0.0.1:{self.port}"}], **changes)
        self.process = CommandProcess(
            ["serve", "-c", str(self.directory / "zonemta.yaml")], self.directory / "log"
        )
        self.process.wait_ready()

    async def submit(self, recipient: str) -> str:
        """The reply to a message; empty when the relay does not answer."""
        try:
            async with await RawClient.connect(self.port, greeting=False) as client:
                if not (await client.reply()).startswith("220"):
                    return ""
                await client.ehlo()
                for line in ("MAIL FROM:<s@a.example>", f"RCPT TO:<{recipient}>", "DATA"):
                    reply = await client.command(line)
                    if reply[0] not in "23":
                        return reply
                return await client.command(MESSAGE[:-2].decode())
        except (OSError, TimeoutError, IndexError):
            return ""

    def log(self) -> str:
        return (self.directory / "log").read_text()


@contextmanager
def limited(served: Served, what: int, soft: int) -> Iterator[None]:
    """A limit of the running process, removed again at the end."""
    before = resource.prlimit(served.process.pid, what)
    resource.prlimit(served.process.pid, what, (soft, before[1]))
    try:
        yield
    finally:
        resource.prlimit(served.process.pid, what, before)


async def fails_and_recovers(
    served: Served, cause: Callable[[], AbstractContextManager[object]]
) -> None:
    """Mail is refused for as long as ``cause`` lasts, and accepted and delivered after it."""
    sent = 0

    async def submitted() -> bool:
        nonlocal sent
        sent += 1
        return (await served.submit(f"u{sent}@a.example")).startswith("250")

    assert await submitted()
    with cause():
        while await submitted():
            assert sent < 2000
        await until(lambda: "the queue cannot be" in served.log(), "the failure", 120)
    await eventually(submitted, "mail to be accepted")
    await until(lambda: "is open again" in served.log(), "the queue to be opened")


async def finish(served: Served, stage: Stage) -> None:
    """All that was accepted is delivered, and the process ends as usual."""
    await until(lambda: delivered(stage) >= {f"u{n}@a.example" for n in (1,)}, "the first message")
    assert served.process.stop() == 0
    accepted = {
        each["recipient"] for e in logged_events(stage.directory, "accepted") for each in e["recipients"]
    }
    assert {event["recipient"] for event in logged_events(stage.directory, "delivered")} <= accepted


def delivered(stage: Stage) -> set[str]:
    return {address for message in stage.sinks["a.example"].messages for address in message.recipients}


@pytest.mark.parametrize(("store", "soft"), [("leveldb", 1 << 20), ("filesystem", 100_000)])
async def test_no_space(directory: Path, store: str, soft: int) -> None:
    """Files may not grow beyond a limit that LevelDB's log, or a body, exceeds."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        served = Served(stage, queue={"directory": "queue", "min_free_disk": "1MiB", "store": store})
        try:
            await fails_and_recovers(served, lambda: limited(served, resource.RLIMIT_FSIZE, soft))
            await finish(served, stage)
        finally:
            served.process.kill()


async def test_no_descriptors(directory: Path) -> None:
    """The filesystem store opens a file for each message."""
    async with staged(directory) as stage:
        await stage.receiver("a.example")
        served = Served(
            stage, queue={"directory": "queue", "min_free_disk": "1MiB", "store": "filesystem"}
        )
        try:
            await fails_and_recovers(served, lambda: limited(served, resource.RLIMIT_NOFILE, 12))
            await finish(served, stage)
        finally:
            served.process.kill()


async def test_a_server_that_hangs(directory: Path) -> None:
    """Longer than its lease: the relay gives up, and takes its partition again."""
    settings, server = own_server(directory, "redis")
    queue = {
        "directory": "queue",
        "store": "redis",
        "shared": {"name": "one", "lease": time_limit(2)},
        "redis": {"url": settings.redis.url},
    }
    try:
        async with staged(directory) as stage:
            await stage.receiver("a.example")
            served = Served(stage, queue=queue)
            try:
                await fails_and_recovers(served, lambda: suspended(server))
                await finish(served, stage)
            finally:
                served.process.kill()
    finally:
        kill(server)


async def test_an_object_store_that_hangs(directory: Path) -> None:
    """Its client waits for minutes: mail is not answered meanwhile, and goes on when the store does."""
    settings, server = own_server(directory, "s3")
    s3 = {"bucket": settings.s3.bucket, "endpoint": settings.s3.endpoint}
    queue = {
        "directory": "queue",
        "store": "s3",
        "shared": {"name": "one", "lease": time_limit(2)},
        "s3": s3,
    }
    try:
        async with staged(directory) as stage:
            sink = await stage.receiver("a.example")
            served = Served(stage, queue=queue)
            try:
                assert (await served.submit("u1@a.example")).startswith("250")
                with suspended(server):
                    waiting = asyncio.ensure_future(served.submit("u2@a.example"))
                    await asyncio.wait([waiting], timeout=scaled(6))  # three times its lease
                    assert not (waiting.done() and waiting.result().startswith("250"))

                async def submitted() -> bool:
                    return (await served.submit("u3@a.example")).startswith("250")

                await eventually(submitted, "mail to be accepted")
                reply = await waiting
                accepted = {"u1@a.example", "u3@a.example"}
                accepted |= {"u2@a.example"} if reply.startswith("250") else set()
                await until(lambda: delivered(stage) >= accepted, "the deliveries")
                assert sink.tally.messages
                assert served.process.stop() == 0
            finally:
                served.process.kill()
    finally:
        kill(server)
