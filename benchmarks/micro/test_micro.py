"""Micro-benchmarks of parsers and of the queue: `make micro`. Nothing here is asserted on time.

Each also asserts that what it measures is what it says, so that a fast nothing is not a result.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from zonemta_py.bench.source import make_body
from zonemta_py.config.schema import QueueSettings
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.queue.accept import NewMessage, NewRecipient
from zonemta_py.queue.format.records import (
    Origin,
    new_recipient_record,
    pack_record,
    read_recipient_record,
)
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.queue import Queue, QueueOptions
from zonemta_py.queue.upkeep.startup import begin_boot
from zonemta_py.smtp.commands import parse_mail, parse_rcpt
from zonemta_py.smtp.dkim import BodyHash
from zonemta_py.smtp.headers import HeaderSplitter
from zonemta_py.smtp.reply import Reply, ReplyReader
from zonemta_py.smtp.transparency import DotDecoder, DotEncoder, LineCheck
from zonemta_py.storage.open import open_store

MESSAGE = make_body(4096)
BODY_64K = make_body(65_536)
OK = Attempt("dot", 250, "2.0.0", "Ok", "mx.example", "192.0.2.1")
ORIGIN = Origin("127.0.0.1:2525", "127.0.0.1", "client.example", "", "ESMTP")


def test_commands(benchmark: BenchmarkFixture) -> None:
    """MAIL and RCPT."""

    def parse() -> str:
        parse_mail("FROM:<news@example.org> SIZE=4096 BODY=8BITMIME", extended=True, max_size=10**8)
        return parse_rcpt("TO:<someone@example.net>", smtputf8=False, extended=True).address

    assert benchmark(parse) == "someone@example.net"


@pytest.mark.parametrize("data", [MESSAGE, BODY_64K], ids=["4k", "64k"])
def test_decode(benchmark: BenchmarkFixture, data: bytes) -> None:
    """DATA to the message, with the check of its line ends."""

    def decode() -> int:
        decoder, check = DotDecoder(), LineCheck(65_536)
        message = decoder.feed(data)
        check.feed(message)
        assert decoder.done and not check.bare
        return len(message)

    assert benchmark(decode) == len(data) - 3


def test_encode(benchmark: BenchmarkFixture) -> None:
    """64 KB to DATA, without a dot to stuff."""
    body = BODY_64K.removesuffix(b".\r\n")
    assert benchmark(lambda: DotEncoder().feed(body)) == body


def test_header(benchmark: BenchmarkFixture) -> None:
    """The header block, cut off and looked at."""

    def split() -> int:
        splitter = HeaderSplitter()
        splitter.feed(MESSAGE)
        return len(splitter.fields)

    assert benchmark(split) == 4


def test_replies(benchmark: BenchmarkFixture) -> None:
    """What a peer says in a transaction."""
    said = b"250 2.1.0 Ok\r\n250 2.1.5 Ok\r\n354 Go on\r\n"

    def read() -> int:
        replies = list[Reply]()
        ReplyReader().feed(said, replies)
        return len(replies)

    assert benchmark(read) == 3


def test_body_hash(benchmark: BenchmarkFixture) -> None:
    """DKIM's, relaxed, of 4 KB."""

    def digest() -> bytes:
        found = BodyHash()
        found.feed(MESSAGE)
        return found.digest()

    assert len(benchmark(digest)) == 32


def test_record(benchmark: BenchmarkFixture) -> None:
    """A recipient to its record and back."""
    record = new_recipient_record(3, "example.net", "127.0.0.1")
    assert benchmark(lambda: read_recipient_record(pack_record(record))) == record


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.mark.parametrize("recipients", [1, 50])
def test_through_the_queue(
    benchmark: BenchmarkFixture, runner: asyncio.Runner, tmp_path: Path, recipients: int
) -> None:
    """A hundred messages accepted, leased, started and delivered, fsync on: a real LevelDB."""
    store = open_store(QueueSettings(directory=tmp_path))
    queue = Queue(
        store,
        begin_boot(store),
        QueueOptions(window=50_000, body_cache_bytes=32 << 20),
        lambda zone, domain: domain,
    )

    async def open_queue() -> None:
        await queue.recover()
        await queue.begin()

    async def one(number: int) -> None:
        writer = queue.open_message()
        writer.write(MESSAGE)
        to = [
            NewRecipient(f"{i}@d{number}.example", f"d{number}.example", "default")
            for i in range(recipients)
        ]
        await queue.accept(writer, NewMessage("s@sender.example", b"Subject: x\r\n", to, ORIGIN))
        lease = queue.lease("default", f"d{number}.example", 100)
        assert lease is not None and len(lease.recipients) == recipients
        await queue.start(lease)
        await queue.settle(lease, [Outcome(r, OutcomeKind.DELIVERED, OK) for r in lease.recipients])

    async def hundred() -> int:
        await asyncio.gather(*(one(number) for number in range(100)))
        return len(queue.windows.zone("default").destinations())

    runner.run(open_queue())
    assert benchmark(lambda: runner.run(hundred())) == 0
    runner.run(queue.close())
