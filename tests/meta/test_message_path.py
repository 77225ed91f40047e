"""How much code a message passes, against ceilings that are only lowered: files, changes of file, calls.

A message of one recipient comes over SMTP, on a session that is kept or on one of its own (``connect``), and leaves over SMTP on one that is kept,
in one process, without limits, tenants or DNS.
What a change adds here it takes away elsewhere. The least figures of several messages count: timers, and a busy machine, add calls to others.
"""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from inspect import CO_COROUTINE
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import zonemta_py
from tests.kit.deadlines import until
from tests.kit.queue import everything
from tests.kit.relay import ONE_PROCESS, relaying, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.server import Sink

PACKAGE = f"{Path(zonemta_py.__file__).parent}/"
NOT_OURS = ("sink/", "bench/")  # the receiver of the test runs in the same process
MESSAGES = 40
MESSAGE = b"Subject: x\r\n\r\nhello\r\n.\r\n"
CEILINGS = Path(__file__).with_name("ceilings.txt")


class Passed(NamedTuple):
    """The way of one message. ``accepted``: up to its 250."""

    files: int
    file_changes: int
    calls: int
    files_accepted: int


class Trace:
    """The calls of the package's functions, on the loop.

    A coroutine that continues after a wait is not counted again: the number of waits depends on the order of the answers.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self._counts = True
        self._coroutines: set[FrameType] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if (
            self._counts
            and event == "call"
            and name.startswith(PACKAGE)
            and not name.startswith(NOT_OURS, len(PACKAGE))
            and frame not in self._coroutines
        ):
            self.files.append(name)
            if frame.f_code.co_flags & CO_COROUTINE:
                self._coroutines.add(frame)

    def without(self, check: Callable[[], bool]) -> bool:
        """The result of ``check``, whose calls do not count."""
        self._counts = False
        try:
            return check()
        finally:
            self._counts = True

    def passed(self, accepted: int) -> Passed:
        files = self.files
        changes = sum(a is not b and a != b for a, b in pairwise(files))
        return Passed(len(set(files)), changes, len(files), len(set(files[:accepted])))


@contextmanager
def traced() -> Iterator[Trace]:
    trace = Trace()
    sys.setprofile(trace.note)
    try:
        yield trace
    finally:
        sys.setprofile(None)


def is_empty(relay: Relay) -> bool:
    return everything(relay.queue.store) == []


def ceilings() -> dict[str, int]:
    return {name: int(value) for name, value in map(str.split, CEILINGS.read_text().splitlines())}


@asynccontextmanager
async def relay_to_smarthost(directory: Path) -> AsyncIterator[Relay]:
    async with staged(directory) as stage:
        sink = Sink()
        port = await sink.start("127.0.1.16", stage.port)
        zone = {"smarthost": f"127.0.1.16:{port}", "tls": "off"}
        config = stage.config(processes=ONE_PROCESS, zones={"default": zone})
        async with relaying(config) as relay:
            yield relay
        await sink.close()


async def test_a_message_passes_no_more_than_the_ceilings(directory: Path) -> None:
    found: list[Passed] = []
    async with (
        relay_to_smarthost(directory) as relay,
        await RawClient.connect(relay.addresses[0].port) as client,
    ):
        await client.ehlo()
        for _ in range(MESSAGES):
            with traced() as trace:
                reply = await client.message(MESSAGE, "x@b.example")
                accepted = len(trace.files)
                await until(partial(trace.without, partial(is_empty, relay)), "an empty queue")
            assert reply.startswith("250")
            found.append(trace.passed(accepted))
    usual = Passed(*(min(values) for values in zip(*found, strict=True)))  # under load, others pass more
    print(usual)
    most = ceilings()
    over = [
        f"{name}: {value}, at most {most[name]}"
        for name, value in usual._asdict().items()
        if value > most[name]
    ]
    assert over == []


async def test_a_session_for_each_message_passes_no_more(directory: Path) -> None:
    """Its connection, greeting and end included. Each step begins after the one before, so that the count does not depend on time."""
    found: list[int] = []
    async with relay_to_smarthost(directory) as relay:

        def has_ended() -> bool:
            return relay._intake.sessions == 0

        for _ in range(MESSAGES):
            with traced() as trace:
                async with await RawClient.connect(relay.addresses[0].port) as client:
                    await client.ehlo()
                    assert (await client.message(MESSAGE, "x@b.example")).startswith("250")
                    await until(partial(trace.without, partial(is_empty, relay)), "an empty queue")
                    assert (await client.command("QUIT")).startswith("221")
                await until(partial(trace.without, has_ended), "the end of the session")
            found.append(len(trace.files))
    usual = min(found)
    print(usual, sorted(found))
    assert usual <= ceilings()["connect_calls"]
