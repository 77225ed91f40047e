"""How much code a message passes, against ceilings that are only lowered: files, changes of file, calls.

A message of one recipient comes over SMTP on a session that is kept and leaves over SMTP on one, in one process, without limits, tenants or DNS.
What a change adds here it takes away elsewhere. The most common figures of several messages count: timers add calls to some.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mode
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
TOLERANCE = 1.02  # a wake-up more or less, by the time that the disk takes
CEILINGS = Path(__file__).with_name("ceilings.txt")


class Passed(NamedTuple):
    """The way of one message. ``accepted``: up to its 250."""

    files: int
    file_changes: int
    calls: int
    files_accepted: int


class Trace:
    """The calls of the package's functions, on the loop."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._counts = True

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if (
            self._counts
            and event == "call"
            and name.startswith(PACKAGE)
            and not name.startswith(NOT_OURS, len(PACKAGE))
        ):
            self.files.append(name)

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


async def test_a_message_passes_no_more_than_the_ceilings(directory: Path) -> None:
    async with staged(directory) as stage:
        sink = Sink()
        port = await sink.start("127.0.1.16", stage.port)
        zone = {"smarthost": f"127.0.1.16:{port}", "tls": "off"}
        config = stage.config(processes=ONE_PROCESS, zones={"default": zone})
        found: list[Passed] = []
        async with (
            relaying(config) as relay,
            await RawClient.connect(relay.addresses[0].port) as client,
        ):
            await client.ehlo()
            for _ in range(MESSAGES):
                with traced() as trace:
                    reply = await client.message(b"Subject: x\r\n\r\nhello\r\n.\r\n", "x@b.example")
                    accepted = len(trace.files)
                    await until(partial(trace.without, partial(is_empty, relay)), "an empty queue")
                assert reply.startswith("250")
                found.append(trace.passed(accepted))
        await sink.close()
    usual = Passed(*(mode(values) for values in zip(*found, strict=True)))
    ceilings = Passed(
        **{name: int(value) for name, value in map(str.split, CEILINGS.read_text().splitlines())}
    )
    print(usual)
    over = [
        f"{name}: {value}, at most {most}"
        for name, value, most in zip(Passed._fields, usual, ceilings, strict=True)
        if value > most
    ]
    assert over == []
