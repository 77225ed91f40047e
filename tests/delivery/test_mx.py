"""Look-ups against a real name server on loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest

from tests.kit.deadlines import scaled
from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.endpoints import NameServer as Server
from zonemta_py.config.schema import Resolver
from zonemta_py.config.values import Seconds
from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.delivery import dns
from zonemta_py.delivery.dns import FAILURE_TTL_S, HOST_FAILURE_TTL_S, DnsChannel, MxResolver
from zonemta_py.delivery.dns import Records as DnsAnswer
from zonemta_py.sink.nameserver import SERVFAIL, SILENT, NameServer, Records
from zonemta_py.smtp.mx_order import TARGETS_MAX, Host, MxAnswer, allowed, best, is_public, order

RECORDS: Records = {
    "plain.example": {"MX": ["20 b.example.", "10 a.example."]},
    "a.example": {"A": ["127.0.0.11", "127.0.0.12"], "AAAA": ["::1"]},
    "b.example": {"A": ["127.0.0.13"]},
    "bare.example": {"A": ["127.0.0.14"]},
    "null.example": {"MX": ["0 ."]},
    "twicenull.example": {"MX": ["0 .", "10 ."], "A": ["192.0.2.9"]},
    "halfnull.example": {"MX": ["0 .", "10 mx.halfnull.example."]},
    "mx.halfnull.example": {"A": ["192.0.2.9"]},
    "empty.example": {"TXT": ["x"]},
    "alias.example": {"CNAME": ["plain.example."]},
    "mxalias.example": {"MX": ["10 hostalias.example."]},
    "hostalias.example": {"CNAME": ["b.example."]},
    "broken.example": SERVFAIL,
    "silent.example": SILENT,
    "nohost.example": {"MX": ["10 nowhere.example."]},
    "halfhost.example": {"MX": ["10 broken.example.", "20 b.example."]},
    "onlybroken.example": {"MX": ["10 broken.example."]},
    "six.example": {"AAAA": ["::1"]},
}


@asynccontextmanager
async def resolving(ttl_s: int = 60) -> AsyncIterator[tuple[MxResolver, NameServer]]:
    server = NameServer(RECORDS, ttl_s)
    port = await server.start()
    resolver = MxResolver(Resolver((Server(HostPort("127.0.0.1", port)),), Seconds(scaled(0.6))))
    try:
        yield resolver, server
    finally:
        resolver.close()
        server.close()


@pytest.mark.parametrize(
    ("domain", "hosts"),
    [
        (
            "plain.example",
            [(10, "a.example", ("127.0.0.11", "127.0.0.12", "::1")), (20, "b.example", ("127.0.0.13",))],
        ),
        ("bare.example", [(0, "bare.example", ("127.0.0.14",))]),
        ("six.example", [(0, "six.example", ("::1",))]),
        (
            "alias.example",
            [(10, "a.example", ("127.0.0.11", "127.0.0.12", "::1")), (20, "b.example", ("127.0.0.13",))],
        ),
        ("mxalias.example", [(10, "hostalias.example", ("127.0.0.13",))]),
        ("halfhost.example", [(10, "broken.example", ()), (20, "b.example", ("127.0.0.13",))]),
        ("halfnull.example", [(10, "mx.halfnull.example", ("192.0.2.9",))]),
        ("[127.0.0.1]", [(0, "[127.0.0.1]", ("127.0.0.1",))]),
        ("[ipv6:::1]", [(0, "[ipv6:::1]", ("::1",))]),
    ],
)
async def test_hosts(domain: str, hosts: list[tuple[int, str, tuple[str, ...]]]) -> None:
    async with resolving() as (resolver, _):
        found = await resolver.resolve(domain)
        assert [(h.preference, h.name, tuple(sorted(h.ips))) for h in found] == hosts


async def test_one_look_up_of_a_host_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is used, and not for long; it is said that there may be more."""
    async with resolving() as (resolver, _):
        query = resolver._query

        async def failing(name: str, rdtype: str, *, missing_domain_ok: bool = False) -> DnsAnswer:
            if (name, rdtype) == ("a.example", "A"):
                raise DestinationFailed(0, "4.4.3", "no answer")
            return await query(name, rdtype, missing_domain_ok=missing_domain_ok)

        monkeypatch.setattr(resolver, "_query", failing)
        found = await resolver.resolve("plain.example")
        assert [(host.ips, host.is_whole) for host in found] == [
            (("::1",), False),
            (("127.0.0.13",), True),
        ]
        assert resolver._cache["plain.example"][0] <= clock.monotonic_s() + FAILURE_TTL_S
        assert best(found).has_ipv4


async def test_the_look_ups_of_the_best_host_failed() -> None:
    """Mail goes to the next one, and it is still the best one that says whose domain it is."""
    async with resolving(ttl_s=3000) as (resolver, _):
        found = await resolver.resolve("halfhost.example")
        assert best(found) == MxAnswer(("broken.example",), True, True, is_whole=False)
        assert order(found, Random(1)) == [("b.example", "127.0.0.13")]
        expires_s = resolver._cache["halfhost.example"][0]
        assert expires_s <= clock.monotonic_s() + HOST_FAILURE_TTL_S


async def test_a_channel_is_replaced_after_many_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """c-ares remembers each answer. What is asked for meanwhile has its answer from the channel before."""
    monkeypatch.setattr(dns, "QUESTIONS_MAX", 3)
    async with resolving() as (resolver, _):
        channels = set[DnsChannel | None]()

        async def one(domain: str) -> None:
            await resolver.resolve(domain)
            channels.add(resolver._channel)

        await asyncio.gather(*(one(name) for name in ("plain.example", "bare.example", "six.example")))
        await one("mxalias.example")
        assert len(channels) > 1
        assert resolver._channel is not None
        assert not resolver._channel._is_retired


@pytest.mark.parametrize(
    ("domain", "status", "permanent"),
    [
        ("null.example", "5.1.10", True),
        ("twicenull.example", "5.1.10", True),
        ("missing.example", "5.1.2", True),
        ("empty.example", "4.1.2", False),
        ("broken.example", "4.4.3", False),
        ("silent.example", "4.4.3", False),
        ("nohost.example", "4.1.2", False),
        ("onlybroken.example", "4.4.3", False),
        ("[ipv6:nonsense]", "5.1.2", True),
    ],
)
async def test_failures(domain: str, status: str, permanent: bool) -> None:
    """Permanent only where the answer is final; a name server that fails is a deferral."""
    async with resolving() as (resolver, _):
        with pytest.raises(DestinationFailed) as caught:
            await resolver.resolve(domain)
        assert (caught.value.status, caught.value.permanent) == (status, permanent)


class OddServer(asyncio.DatagramProtocol):
    """Answers each question with the flags ``flags``, and without a record."""

    def __init__(self, flags: int) -> None:
        self._flags = flags

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        header = data[:2] + self._flags.to_bytes(2, "big") + b"\0\1\0\0\0\0\0\0"
        self._transport.sendto(header + data[12:].partition(b"\0\0\x29")[0], addr)


@pytest.mark.parametrize("flags", [0x8186, 0x8189, 0x818B, 0x0100], ids=["6", "9", "11", "a question"])
async def test_a_strange_answer_is_not_final(flags: int) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: OddServer(flags), local_addr=("127.0.0.1", 0)
    )
    port = transport.get_extra_info("sockname")[1]
    resolver = MxResolver(Resolver((Server(HostPort("127.0.0.1", port)),), Seconds(scaled(0.6))))
    with pytest.raises(DestinationFailed) as caught:
        await resolver.resolve("odd.example")
    resolver.close()
    transport.close()
    assert not caught.value.permanent


async def test_an_address_behind_many_hosts_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """More hosts are looked up, up to a limit, until one has an address."""
    nowhere = [f"10 m{number}.nowhere.example." for number in range(50)]
    async with resolving() as (resolver, server):
        monkeypatch.setitem(server.records, "many.example", {"MX": [*nowhere, "20 b.example."]})
        assert [host.name for host in await resolver.resolve("many.example")] == ["b.example"]
        monkeypatch.setattr(dns, "MX_MAX", 40)
        resolver._cache.clear()
        with pytest.raises(DestinationFailed):
            await resolver.resolve("many.example")


async def test_each_name_is_asked_once() -> None:
    """A hundred at a time share one look-up, and the answer is kept; a negative one too."""
    async with resolving() as (resolver, server):
        await asyncio.gather(*(resolver.resolve("plain.example") for _ in range(100)))
        await resolver.resolve("plain.example")
        assert server.queries["plain.example", "MX"] == 1
        for _ in range(3):
            with pytest.raises(DestinationFailed):
                await resolver.resolve("missing.example")
        assert server.queries["missing.example", "MX"] == 1


async def test_one_that_gives_up_does_not_take_the_answer_along() -> None:
    async with resolving() as (resolver, _):
        first = asyncio.ensure_future(resolver.resolve("plain.example"))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(resolver.resolve("plain.example"))
        await asyncio.sleep(0)
        first.cancel()
        assert len(await second) == 2


async def test_answers_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    from zonemta_py.delivery import dns

    now = [100.0]
    monkeypatch.setattr(clock, "monotonic_s", lambda: now[0])
    async with resolving(ttl_s=0) as (resolver, server):  # the library keeps other answers itself
        await resolver.resolve("bare.example")
        now[0] += dns.TTL_MIN_S - 1
        await resolver.resolve("bare.example")
        assert server.queries["bare.example", "A"] == 1
        now[0] += 2
        await resolver.resolve("bare.example")
        assert server.queries["bare.example", "A"] == 2


def test_order() -> None:
    """By preference, at random within one, bounded."""
    hosts = [Host(20, "c", ("3",)), Host(10, "a", ("1",)), Host(10, "b", ("2",))]
    seen = {tuple(order(hosts, Random(seed))) for seed in range(20)}
    assert seen == {(("a", "1"), ("b", "2"), ("c", "3")), (("b", "2"), ("a", "1"), ("c", "3"))}
    many = tuple(str(n) for n in range(100))
    assert len(order([Host(0, "x", many)], Random(1))) == TARGETS_MAX
    found = order([Host(10, "x", many), Host(10, "y", ("a", "b")), Host(20, "z", many)], Random(1))
    assert [name for name, _ in found] in (
        [*"xyxy", *"xxxx", *"zzzzzzzz"], [*"yxyx", *"xxxx", *"zzzzzzzz"]
    ), "each host has its turn, and no preference hides the next"  # fmt: skip


async def test_the_hosts_of_a_domain_are_looked_up_at_once() -> None:
    """One that does not answer does not delay the others by more than its own time limit."""
    records: dict[str, Any] = {f"mx{n}.many.example": SILENT for n in range(5)}
    records["mx5.many.example"] = {"A": ["127.0.0.5"]}
    records["many.example"] = {"MX": [f"10 mx{n}.many.example." for n in range(6)]}
    async with resolving() as (resolver, server):
        server.records = {**server.records, **records}
        async with asyncio.timeout(scaled(0.6) * 2.5):
            hosts = await resolver.resolve("many.example")
        assert [host.name for host in hosts if host.ips] == ["mx5.many.example"]


@pytest.mark.parametrize(
    ("ip", "public"),
    [
        ("8.8.8.8", True), ("2001:4860:4860::8888", True), ("127.0.0.1", False), ("10.0.0.1", False), ("::1", False),
        ("169.254.1.1", False), ("::ffff:127.0.0.1", False), ("64:ff9b::7f00:1", False), ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False), ("::127.0.0.1", False), ("fec0::1", False), ("fe80::1", False), ("224.0.0.1", False),
        ("0.0.0.0", False), ("::", False), ("255.255.255.255", False),
    ],
)  # fmt: skip
def test_public(ip: str, public: bool) -> None:
    assert is_public(ip) is public
    assert bool(allowed([("h", ip)], private=False)) is public
    assert allowed([("h", ip)], private=True) == [("h", ip)]


async def test_an_answer_of_old_servers_is_not_kept() -> None:
    """A look-up that runs during a reload has its answer; the next one asks the new servers."""
    async with resolving() as (resolver, server):
        running = asyncio.ensure_future(resolver.resolve("plain.example"))
        await asyncio.sleep(0)
        resolver.configure(resolver._settings)
        again = asyncio.ensure_future(resolver.resolve("plain.example"))
        assert len(await running) == len(await again) == 2
        assert server.queries["plain.example", "MX"] == 2
        await resolver.resolve("plain.example")
        assert server.queries["plain.example", "MX"] == 2


async def test_the_addresses_of_a_host_serve_all_its_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further domain of a known host costs one question to the library, until the addresses expire."""
    asked: list[tuple[str, str]] = []
    query = DnsChannel.query

    async def noted(channel: DnsChannel, name: str, kind: str) -> DnsAnswer:
        asked.append((name, kind))
        return await query(channel, name, kind)

    monkeypatch.setattr(DnsChannel, "query", noted)
    async with resolving() as (resolver, server):
        server.records = {**server.records, "other.example": {"MX": ["10 a.example."]}}
        await resolver.resolve("plain.example")
        asked.clear()
        [host] = await resolver.resolve("other.example")
        assert (host.preference, host.name) == (10, "a.example")
        assert set(host.ips) == {"127.0.0.11", "127.0.0.12", "::1"}
        assert asked == [("other.example", "MX")]
        resolver.configure(resolver._settings)
        await resolver.resolve("other.example")
        assert ("a.example", "A") in asked
