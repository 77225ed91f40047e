"""Counts the calls of Python and C that a message takes in a relay of one process, and where they are made.

A scenario is a relay (``scenarios``), and messages one after the other, each traced from the client's command until the queue is
empty again. Every step waits for the one before, so that the count is the same in every run; timers, and a busy machine, add calls to
some messages only: the least counts. A call belongs to the module that makes it, so that the sum is the cost of its lines.

Example::

    async with scenario("kept", directory) as counted:
        await counted.messages(40)
    counted.usual()
"""

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from inspect import CO_COROUTINE
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import zonemta_py
from tests.kit.deadlines import until
from tests.kit.queue import everything
from tests.kit.relay import ONE_PROCESS, Stage, relaying, staged
from tests.kit.smtp_client import RawClient
from zonemta_py.relay.relay import Relay

PACKAGE = f"{Path(zonemta_py.__file__).parent}/"
NOT_OURS = ("sink/", "bench/")  # the receiver runs in the same process
MESSAGE = b"From: s@sender.example\r\nSubject: x\r\n\r\nhello\r\n.\r\n"
LIST_RECIPIENTS = 50


class Passed(NamedTuple):
    """The way of one message. ``calls``: of our functions; ``all_calls``: those of C that they make, too. ``accepted``: up to its 250."""

    files: int
    file_changes: int
    calls: int
    all_calls: int
    files_accepted: int


class Trace:
    """The calls of the package's functions, on the loop, and their calls of C.

    A coroutine that continues after a wait is not counted again: the number of waits depends on the order of the answers.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self.made = Counter[str]()  # calls of C, by the file that makes them
        self._counts = True
        self._coroutines: set[FrameType] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """See ``sys.setprofile``."""
        if not self._counts or event not in ("call", "c_call"):
            return
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or name.startswith(NOT_OURS, len(PACKAGE)):
            return
        if event == "c_call":
            self.made[name] += 1
        elif frame not in self._coroutines:
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
        """What was traced; ``accepted``: how many calls until the 250."""
        files = self.files
        changes = sum(a is not b and a != b for a, b in pairwise(files))
        calls = len(files)
        return Passed(
            len(set(files)), changes, calls, calls + self.made.total(), len(set(files[:accepted]))
        )

    def by_module(self) -> Counter[str]:
        """The calls by module: of its functions, and of C by them."""
        both = Counter(self.files) + self.made
        return Counter({name.removeprefix(PACKAGE): count for name, count in both.items()})


@contextmanager
def traced() -> Iterator[Trace]:
    """What the loop calls meanwhile."""
    trace = Trace()
    sys.setprofile(trace.note)
    try:
        yield trace
    finally:
        sys.setprofile(None)


# ---- scenarios

_LIMITED = {"messages": ["100000/h", "1000000/d"], "bytes": ["100GiB/d"]}
_ACME = {"networks": ["127.0.0.0/8"], "domains": ["sender.example"], "limits": _LIMITED}
_PROVIDER = "providers: {b: {domains: [b.example], limits: {sessions: 10, rate: [10000/s], messages_per_session: 1000}}}\n"


async def _smarthost(stage: Stage) -> dict[str, Any]:
    await stage.receiver("b.example")
    smarthost = f"127.0.1.1:{stage.port}"  # the first receiver
    return {"zones": {"default": {"smarthost": smarthost, "tls": "off"}}}


async def _dns(stage: Stage) -> dict[str, Any]:
    await stage.receiver("b.example")
    return {"zones": {"default": {"tls": "off"}}}


async def _limited(stage: Stage) -> dict[str, Any]:
    """Tenants with limits, and a provider with limits; none binds."""
    (stage.directory / "providers.yaml").write_text(_PROVIDER)
    tenants = {"acme": _ACME, "globex": {"networks": ["10.0.0.0/8"], "domains": ["globex.example"]}}
    return await _dns(stage) | {"tenants": tenants, "providers": {"file": "providers.yaml"}}


_SCENARIOS: Mapping[str, tuple[Callable[[Stage], Any], int, bool]] = {
    "kept": (_smarthost, 1, True),
    "connect": (_smarthost, 1, False),
    "list50": (_smarthost, LIST_RECIPIENTS, True),
    "dns": (_dns, 1, True),
    "limited": (_limited, 1, True),
}  # the relay, recipients of a message, whether the client keeps its session
NAMES = tuple(_SCENARIOS)


class Counted:
    """The messages of a scenario. ``traces``: what was called for each."""

    def __init__(self, relay: Relay, recipients: int, *, keeps_session: bool) -> None:
        self._relay = relay
        self._to = [f"x{number}@b.example" for number in range(recipients)]
        self._keeps_session = keeps_session
        self._clients = AsyncExitStack()
        self.traces: list[tuple[Trace, Passed]] = []

    async def messages(self, count: int) -> None:
        """Send ``count`` messages, and trace each."""
        async with self._clients:
            client = await self._connected() if self._keeps_session else None
            for _ in range(count):
                with traced() as trace:
                    if client is not None:
                        accepted = await self._send(client, trace)
                    else:
                        accepted = await self._send_alone(trace)
                self.traces.append((trace, trace.passed(accepted)))

    async def _connected(self) -> RawClient:
        port = self._relay.addresses[0].port
        client = await self._clients.enter_async_context(await RawClient.connect(port))
        await client.ehlo()
        return client

    async def _send(self, client: RawClient, trace: Trace) -> int:
        reply = await client.message(MESSAGE, *self._to)
        accepted = len(trace.files)
        await until(partial(trace.without, self._is_empty), "an empty queue")
        assert reply.startswith("250"), reply
        return accepted

    async def _send_alone(self, trace: Trace) -> int:
        """On a session of its own: its connection, greeting and end included."""
        client = await self._connected()
        accepted = await self._send(client, trace)
        assert (await client.command("QUIT")).startswith("221")
        await until(partial(trace.without, self._has_ended), "the end of the session")
        return accepted

    def _is_empty(self) -> bool:
        return everything(self._relay.queue.store) == []

    def _has_ended(self) -> bool:
        return self._relay._intake.sessions == 0

    def least(self) -> Passed:
        """The least figures of all messages: under load, others pass more."""
        return Passed(*(min(values) for values in zip(*(each for _, each in self.traces), strict=True)))

    def usual(self) -> tuple[Passed, Counter[str]]:
        """The figures that most messages have, and the calls of one of them by module."""
        usual, _ = Counter(passed for _, passed in self.traces).most_common(1)[0]
        trace = next(trace for trace, passed in self.traces if passed == usual)
        return usual, trace.by_module()


@asynccontextmanager
async def scenario(name: str, directory: Path) -> AsyncIterator[Counted]:
    """The relay of a scenario (``NAMES``)."""
    prepare, recipients, keeps_session = _SCENARIOS[name]
    async with staged(directory) as stage:
        config = stage.config(processes=ONE_PROCESS, **await prepare(stage))
        async with relaying(config) as relay:
            yield Counted(relay, recipients, keeps_session=keeps_session)
