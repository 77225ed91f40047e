"""Idle sessions, on real connections to a sink."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.deadlines import until
from zonemta_py.config.values import Seconds
from zonemta_py.config.zones import Timeouts
from zonemta_py.delivery.endpoints import Endpoint
from zonemta_py.delivery.session_pool import SessionPool, SessionsByPath
from zonemta_py.sink.server import Sink
from zonemta_py.transports.connect import SessionOptions, Target, open_session
from zonemta_py.transports.session import SmtpSession

LONG_S = 60.0


class Peer:
    """A sink, and sessions with it."""

    def __init__(self, sink: Sink, port: int) -> None:
        self.sink = sink
        self.port = port

    def endpoint(self, source: str | None = None) -> Endpoint:
        return Endpoint("mx.a.example", "127.0.0.1", self.port, source)

    async def open(self) -> SmtpSession:
        target = Target("mx.a.example", "127.0.0.1", self.port)
        timeouts = Timeouts(*(Seconds(5),) * 5)
        return await open_session(target, SessionOptions("relay.example", None, "off", timeouts))


@asynccontextmanager
async def peering() -> AsyncIterator[Peer]:
    sink = Sink()
    port = await sink.start()
    try:
        yield Peer(sink, port)
    finally:
        await sink.close()


async def test_the_session_used_last_is_taken_first() -> None:
    async with peering() as peer:
        pool, endpoint = SessionPool(), peer.endpoint()
        assert pool.take(endpoint) is None
        first, second = await peer.open(), await peer.open()
        pool.put(endpoint, "a.example", first, LONG_S)
        pool.put(endpoint, "a.example", second, LONG_S)
        assert pool.count("a.example") == 2
        assert pool.take(endpoint) is second
        assert pool.take(endpoint) is first
        assert pool.take(endpoint) is None
        assert pool.count("a.example") == 0
        first.close()
        second.close()


async def test_address_port_and_source_must_match() -> None:
    async with peering() as peer:
        pool, session = SessionPool(), await peer.open()
        pool.put(peer.endpoint("127.0.0.5"), "a.example", session, LONG_S)
        other_port = Endpoint("mx.a.example", "127.0.0.1", peer.port + 1, "127.0.0.5")
        other_ip = Endpoint("mx.a.example", "127.0.0.2", peer.port, "127.0.0.5")
        for other in (peer.endpoint(), peer.endpoint("127.0.0.6"), other_port, other_ip):
            assert not pool.has_idle(other)
            assert pool.take(other) is None
        other_name = Endpoint("other.example", "127.0.0.1", peer.port, "127.0.0.5")
        assert pool.has_idle(other_name), "one host under two names"
        pool.close()


async def test_a_session_that_the_peer_closed_is_not_given_out() -> None:
    async with peering() as peer:
        pool, endpoint = SessionPool(), peer.endpoint()
        usable, closed = await peer.open(), await peer.open()
        pool.put(endpoint, "a.example", usable, LONG_S)
        pool.put(endpoint, "a.example", closed, LONG_S)
        await until(lambda: len(peer.sink.connections) == 2, "both connections")
        for connection in list(peer.sink.connections):
            connection.abort()
        await until(lambda: not closed.usable and not usable.usable, "the end of both")
        assert not pool.has_idle(endpoint)
        assert pool.take(endpoint) is None
        assert pool.count("a.example") == 0


async def test_trim_closes_the_longest_idle_first() -> None:
    """First at the destination, then in the zone; negative limits are 0."""
    closed: list[tuple[str, int]] = []
    async with peering() as peer:
        pool = SessionPool(lambda destination, idle, *_: closed.append((destination, idle)))
        endpoint = peer.endpoint()
        sessions = [await peer.open() for _ in range(5)]
        for session, destination in zip(sessions, "abbba", strict=True):
            pool.put(endpoint, destination, session, LONG_S)
        pool.trim("b", 9, 2)
        assert [session.usable for session in sessions] == [True, False, True, True, True]
        assert closed == [("b", 2)]
        pool.trim("b", 2, 2)
        assert [session.usable for session in sessions] == [False, False, False, True, True]
        assert closed[1:] == [("a", 1), ("b", 1)]
        pool.trim("b", 9, -3)
        assert [session.usable for session in sessions] == [False, False, False, False, True]
        pool.trim("unknown", -1, 0)
        assert pool.count("a") == pool.count("b") == 0
        await until(lambda: not peer.sink.connections, "the end of every connection")


async def test_a_session_is_closed_when_its_time_is_over() -> None:
    """One timer serves all: each session ends at its own time."""
    closed: list[tuple[str, int]] = []
    async with peering() as peer:
        pool = SessionPool(lambda destination, idle, *_: closed.append((destination, idle)))
        short, long = await peer.open(), await peer.open()
        pool.put(peer.endpoint(), "a.example", short, 0.05)
        pool.put(peer.endpoint(), "b.example", long, LONG_S)
        await until(lambda: closed == [("a.example", 0)], "the end of the first")
        assert not short.usable
        assert long.usable
        assert pool.count("b.example") == 1
        pool.close()
        assert not long.usable
        assert closed[1:] == [("b.example", 0)]


async def test_a_session_with_a_shorter_time_ends_before_those_that_were_idle_first() -> None:
    """Destinations of a zone may have an idle time of their own."""
    async with peering() as peer:
        pool = SessionPool()
        long, short = await peer.open(), await peer.open()
        pool.put(peer.endpoint(), "a.example", long, LONG_S)
        pool.put(peer.endpoint(), "b.example", short, 0.05)
        await until(lambda: not short.usable, "the end of the second", LONG_S / 12)
        assert long.usable
        pool.close()


async def test_a_taken_session_is_not_reported_as_closed() -> None:
    """Its user counts it; the pool reports the sessions that it closes itself."""
    closed: list[tuple[str, int]] = []
    async with peering() as peer:
        pool = SessionPool(lambda destination, idle, *_: closed.append((destination, idle)))
        session = await peer.open()
        pool.put(peer.endpoint(), "a.example", session, LONG_S)
        assert pool.take(peer.endpoint()) is session
        pool.close()
        assert closed == []
        assert session.usable
        session.close()


async def test_a_session_counts_until_the_peer_has_closed_it() -> None:
    """Two are closed for one request; another one, for which none had to be closed, waits for both too."""
    counts: list[int] = []
    together, path = SessionsByPath(lambda _, count: counts.append(count)), ("big", "127.0.0.5")
    async with peering() as peer:
        pool, endpoint = SessionPool(together=together), peer.endpoint("127.0.0.5")
        for _ in range(3):
            pool.put(endpoint, "a.example", await peer.open(), LONG_S, path)
        assert counts == [1, 2, 3]
        first = asyncio.ensure_future(together.trim(path, (1, -1)))
        await asyncio.sleep(0)
        assert pool.count("a.example") == 1
        assert together.count(path) == 3
        await together.trim(path, (1, -1))
        assert together.count(path) == 1
        assert len(peer.sink.connections) == 1
        await first
        assert counts[-1] == 1
        assert set(counts) == {1, 2, 3}, "never fewer than there are"
        together.begin(path)  # a request that will open a session: with it, the idle one is too many
        await together.trim(path, (-1, 1))
        assert not peer.sink.connections
        assert counts[-1] == 0
        together.end(path)


class CountedSession:
    """A session of a peer that counts its sessions, and sees the end of one ``turns`` turns of the loop late."""

    def __init__(self, open_on: Counter[str], address: str, turns: int) -> None:
        self._open_on = open_on
        self._address = address
        self._turns = turns
        self.usable = True
        open_on[address] += 1

    async def quit(self, wait_s: float) -> None:
        self.usable = False
        for _ in range(self._turns):
            await asyncio.sleep(0)
        self._open_on[self._address] -= 1


class Step(NamedTuple):
    """One request: its address, and how many turns it takes to begin, to be answered, and its session to end."""

    address: int
    waits: int
    takes: int
    ends: int
    keeps: bool


STEPS = st.builds(
    Step, st.integers(0, 2), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.booleans()
)


@given(st.lists(STEPS, max_size=40), st.integers(1, 3), st.integers(1, 5))
def test_no_session_too_many(steps: list[Step], of_an_address: int, of_all: int) -> None:
    """Whatever overtakes what: requests that the permits allow never have more sessions than the limits."""
    asyncio.run(run_requests(steps, of_an_address, of_all))


async def run_requests(steps: list[Step], of_an_address: int, of_all: int) -> None:
    together, open_on = SessionsByPath(), Counter[str]()
    pool = SessionPool(together=together)
    all_permits = asyncio.Semaphore(of_all)
    permits = [asyncio.Semaphore(of_an_address) for _ in range(3)]

    async def request(step: Step) -> None:
        address = f"127.0.0.{step.address + 1}"
        path, endpoint = ("big", address), Endpoint("mx", "127.0.0.9", 25, address)
        async with permits[step.address], all_permits:
            together.begin(path)
            for _ in range(step.waits):
                await asyncio.sleep(0)
            session = pool.take(endpoint)
            if session is None:
                await together.trim(path, (of_an_address, of_all))
                session = cast(SmtpSession, CountedSession(open_on, address, step.ends))
                assert open_on[address] <= of_an_address
                assert open_on.total() <= of_all
            for _ in range(step.takes):
                await asyncio.sleep(0)
            if step.keeps:
                pool.put(endpoint, "a.example", session, LONG_S, path)
            else:
                await session.quit(1.0)
            together.end(path)

    async with asyncio.TaskGroup() as group:
        for step in steps:
            group.create_task(request(step))
    pool.close()
    while any(open_on.values()):
        await asyncio.sleep(0)
