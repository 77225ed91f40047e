"""Mail from a program: envelope, line ends, keys, results and refusals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kit.listener import make_config
from tests.kit.queue import everything, opened
from zonemta_py.core import clock
from zonemta_py.core.errors import NotAccepted, QueueUnavailable
from zonemta_py.intake.inject import Injector, enqueue
from zonemta_py.policies import EnvelopePolicy, split_by_recipient
from zonemta_py.queue.format.records import Origin
from zonemta_py.queue.queue import Queue
from zonemta_py.routing import make_router
from zonemta_py.smtp.commands import Rcpt

MESSAGE = b"Subject: x\r\n\r\nhello\r\n"


class Program:
    """A program with a queue; ``injector`` begins a message."""

    def __init__(self, queue: Queue, directory: Path, policies: tuple[EnvelopePolicy, ...]) -> None:
        self.queue = queue
        self._config = make_config(directory, "    max_message_size: 100KiB")
        self._policies = policies

    def injector(self) -> Injector:
        config = self._config
        return Injector(self.queue, make_router(config), config, "relay.example", self._policies)

    async def enqueue(
        self, *recipients: str, message: bytes = MESSAGE, key: str = "", user: str = ""
    ) -> str:
        return await enqueue(self.injector(), "s@S.example", recipients, message, key=key, user=user)


@asynccontextmanager
async def program(directory: Path, *policies: EnvelopePolicy) -> AsyncIterator[Program]:
    async with opened(directory / "queue", clock.now_ms, store="memory") as queue:
        yield Program(queue, directory, policies)


async def test_the_result_is_the_id(tmp_path: Path) -> None:
    async with program(tmp_path) as our:
        message = await our.enqueue("a@X.example", "a@x.example", user="news")
        lease = our.queue.lease("default", "x.example", 10)
        assert lease is not None
        assert lease.active.id == message
        assert [recipient.address for recipient in lease.recipients] == ["a@x.example"]
        meta = lease.active.meta
        assert meta.sender == "s@s.example"
        assert meta.origin == Origin("", "127.0.0.1", "relay.example", "news", "local")
        assert meta.header.startswith(
            b"Received: from relay.example ([127.0.0.1])\r\n\tby relay.example with local id "
        )


async def test_line_ends(tmp_path: Path) -> None:
    """LF and CRLF are both line ends, wherever the data are divided."""
    pieces = [b"Subject: x\n\nhel", b"lo\r", b"\nworld\n", b"\r", b"\n"]

    async def message() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async with program(tmp_path) as our:
        await enqueue(our.injector(), "", ["a@x.example"], message())
        lease = our.queue.lease("default", "x.example", 10)
        assert lease is not None
        body = b"".join(our.queue.bodies.read(lease.active))
        assert body == b"hello\r\nworld\r\n\r\n"


async def test_a_bare_cr(tmp_path: Path) -> None:
    async with program(tmp_path) as our:
        for message in (MESSAGE + b"x\ry\r\n", MESSAGE + b"x\r"):
            with pytest.raises(NotAccepted, match=r"^554 5\.6\.0 Bare CR"):
                await our.enqueue("a@x.example", message=message)
        assert everything(our.queue.store) == []


@pytest.mark.parametrize(
    ("sender", "recipients", "reply"),
    [
        ("s@s.example", ["nowhere"], "501 5.1.3"),
        ("s@", ["a@x.example"], "501 5.1.3"),
        ("s@s.example", [], "503 5.5.1 No recipient"),
    ],
)
async def test_an_envelope_that_is_refused(
    tmp_path: Path, sender: str, recipients: list[str], reply: str
) -> None:
    async with program(tmp_path) as our:
        with pytest.raises(NotAccepted, match=reply):
            await enqueue(our.injector(), sender, recipients, MESSAGE)


async def test_a_message_that_is_too_large(tmp_path: Path) -> None:
    """``refusal`` says so once more than twice the limit has come; ``finish`` raises it."""
    async with program(tmp_path) as our:
        injector = our.injector()
        await injector.begin("s@s.example", [Rcpt("a@x.example")])
        await injector.write(b"\r\n" + b"x\r\n" * 50_000)
        assert injector.refusal == ""
        await injector.write(b"x\r\n" * 50_000)
        assert injector.refusal.startswith("552 5.3.4 Message size exceeds")
        with pytest.raises(NotAccepted, match="552"):
            await injector.finish()
        assert everything(our.queue.store) == []


async def test_a_repetition(tmp_path: Path) -> None:
    """The id is the first message's, with and without new recipients."""
    async with program(tmp_path) as our:
        first = await our.enqueue("a@x.example", key="k")
        assert await our.enqueue("a@x.example", key="k") == first
        assert await our.enqueue("a@x.example", "b@y.example", key="k") == first
        assert await our.enqueue("a@x.example", key="other") != first
        lease = our.queue.lease("default", "y.example", 10)
        assert lease is not None
        assert lease.active.id != first


async def test_a_key_under_way(tmp_path: Path) -> None:
    """450 until the first message is finished or aborted."""
    async with program(tmp_path) as our:
        injector = our.injector()
        await injector.begin("s@s.example", [Rcpt("a@x.example")], key="k")
        with pytest.raises(NotAccepted, match=r"^450 4\.3\.0"):
            await our.enqueue("a@x.example", key="k")
        injector.abort()
        injector.abort()
        assert await our.enqueue("a@x.example", key="k")


async def test_policies(tmp_path: Path) -> None:
    """The result is the first envelope's message; each recipient has its own."""
    async with program(tmp_path, split_by_recipient) as our:
        first = await our.enqueue("a@x.example", "b@x.example")
        leases = [our.queue.lease("default", "x.example", 1) for _ in range(2)]
        ids = [lease.active.id for lease in leases if lease is not None]
        assert ids[0] == first
        assert len(set(ids)) == 2


async def test_a_queue_that_cannot_be_written(tmp_path: Path) -> None:
    async with program(tmp_path) as our:
        injector = our.injector()
        await injector.begin("s@s.example", [Rcpt("a@x.example")])
        await injector.write(MESSAGE)
        our.queue.commits.failure = QueueUnavailable("disk")
        try:
            with pytest.raises(NotAccepted, match=r"^451 4\.3\.0"):
                await injector.finish()
        finally:
            our.queue.commits.failure = None
