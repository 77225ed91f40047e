"""From a domain to endpoints: MX or smarthost, permitted addresses, sources; against a real name server."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonemta_py.config.endpoints import HostPort, Smarthost
from zonemta_py.config.endpoints import NameServer as Server
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config, Resolver
from zonemta_py.config.sending import PoolAddress
from zonemta_py.config.values import Seconds
from zonemta_py.config.zones import SmarthostAuth, Zone
from zonemta_py.core.errors import ConfigError, DestinationFailed
from zonemta_py.delivery.dns import MxResolver
from zonemta_py.delivery.endpoints import EndpointResolver, choose_source, credentials, read_password
from zonemta_py.delivery.sts_policies import StsPolicies
from zonemta_py.sink.nameserver import SERVFAIL, NameServer, Records

RECORDS: Records = {
    "a.example": {"MX": ["10 mx1.a.example.", "20 mx2.a.example."]},
    "mx1.a.example": {"A": ["127.0.0.11"]},
    "mx2.a.example": {"A": ["127.0.0.12"]},
    "alias.example": {"MX": ["10 mx3.alias.example."]},
    "mx3.alias.example": {"A": ["127.0.0.11"]},
    "one.example": {"MX": ["10 mx1.a.example."]},
    "loop.example": {"MX": ["10 mx1.a.example.", "20 relay.example.", "30 mx2.a.example."]},
    "halfloop.example": {"MX": ["10 broken.example.", "20 relay.example."]},
    "broken.example": SERVFAIL,
    "self.example": {"MX": ["10 relay.example."]},
    "relay.example": {"A": ["127.0.0.99"]},
    "six.example": {"AAAA": ["::1"]},
    "smart.example": {"A": ["127.0.0.25"], "MX": ["10 mx1.a.example."]},
}
PRIVATE = "allow_private_destinations: true\n"
IPV4_ONLY = PRIVATE + "pools: {default: [{address: 127.0.0.1}]}\n"


def settings(text: str = PRIVATE) -> Config:
    return parse_config(text, Path("z.yaml"))


@asynccontextmanager
async def resolving(config: Config | None = None) -> AsyncIterator[tuple[EndpointResolver, NameServer]]:
    server = NameServer(RECORDS, 60)
    port = await server.start()
    mx = MxResolver(Resolver((Server(HostPort("127.0.0.1", port)),), Seconds(5)))
    try:
        yield (
            EndpointResolver(config or settings(), "Relay.Example", mx, StsPolicies(mx), Random(1)),
            server,
        )
    finally:
        server.close()


async def found(
    resolver: EndpointResolver, domain: str, zone: Zone | None = None
) -> list[tuple[str, str, int]]:
    pairs = await resolver.find(zone or Zone(), domain, "message")
    return [(endpoint.host, endpoint.ip, endpoint.port) for endpoint, _ in pairs]


async def test_hosts_by_preference_at_the_port_of_the_zone() -> None:
    async with resolving() as (resolver, _):
        assert await found(resolver, "a.example", Zone(port=2525)) == [
            ("mx1.a.example", "127.0.0.11", 2525),
            ("mx2.a.example", "127.0.0.12", 2525),
        ]


async def test_only_hosts_preferred_to_this_one() -> None:
    """RFC 5321 section 5.1: else two relays would send a message to each other."""
    async with resolving() as (resolver, _):
        assert await found(resolver, "loop.example") == [("mx1.a.example", "127.0.0.11", 25)]
        with pytest.raises(DestinationFailed, match="loops back to this relay") as failed:
            await found(resolver, "self.example")
        assert (failed.value.status, failed.value.permanent) == ("5.4.6", True)
        with pytest.raises(
            DestinationFailed, match=r"the addresses of broken\.example failed"
        ) as failed:
            await found(resolver, "halfloop.example")
        assert not failed.value.permanent, "the one that is preferred may be found later"


@pytest.mark.parametrize(
    ("tls", "shared"), [("opportunistic", True), ("required", False), ("implicit", False)]
)
async def test_hosts_of_one_address_share_a_session_unless_their_names_are_verified(
    tls: str, shared: bool
) -> None:
    """The certificate of one name says nothing of another one, which may be of an attacker's choice."""
    async with resolving() as (resolver, _):
        zone = Zone(tls=tls)
        ends = [
            (await resolver.find(zone, domain, "message"))[0][0] for domain in ("one.example", "alias.example")
        ]  # fmt: skip
        assert {each.ip for each in ends} == {"127.0.0.11"}
        assert (ends[0].security == ends[1].security) == shared


async def test_private_addresses_are_refused_by_default() -> None:
    async with resolving(settings("{}")) as (resolver, _):
        with pytest.raises(DestinationFailed, match="leads only to private addresses") as failed:
            await found(resolver, "a.example")
        assert not failed.value.permanent


async def test_a_smarthost_by_name_or_address() -> None:
    """Its MX is not looked up, it may be private, and its port precedes that of the zone."""
    async with resolving(settings("{}")) as (resolver, _):
        named = Zone(smarthost=(Smarthost("smart.example", 587),), port=2525)
        assert await found(resolver, "a.example", named) == [("smart.example", "127.0.0.25", 587)]
        literal = Zone(smarthost=(Smarthost("127.0.0.7", 587),))
        assert await found(resolver, "any.example", literal) == [("127.0.0.7", "127.0.0.7", 587)]
        six = Zone(smarthost=(Smarthost("::1", 587),))
        assert await found(resolver, "any.example", six) == [("::1", "::1", 587)]


async def test_a_pool_without_an_address_of_the_family() -> None:
    async with resolving(settings(IPV4_ONLY)) as (resolver, _):
        with pytest.raises(DestinationFailed, match="no address of pool 'default' can reach ::1"):
            await found(resolver, "six.example")


async def test_a_sole_endpoint_is_cached_and_others_are_not() -> None:
    async with resolving() as (resolver, _):
        zone = Zone()
        sole = await resolver.find(zone, "one.example", "first")
        assert await resolver.find(zone, "one.example", "second") is sole
        assert await resolver.find(replace(zone, port=26), "one.example", "second") is not sole
        both = await resolver.find(zone, "a.example", "first")
        assert await resolver.find(zone, "a.example", "first") is not both


async def test_the_pool_of_a_tenant() -> None:
    """Instead of the zone's; another EHLO name is another session."""
    pools = PRIVATE + (
        "pools: {default: [{address: 127.0.0.1}], own: [{address: 127.0.0.9}], named: [{ehlo: m.example}]}\n"
        "tenants: {acme: {pool: own}, globex: {pool: named}, other: {}}\n"
    )
    async with resolving(settings(pools)) as (resolver, _):
        found = {}
        for tenant in ("", "acme", "globex", "other", "gone"):
            [(found[tenant], _)] = await resolver.find(Zone(), "one.example", "message", tenant)
        sources = {tenant: endpoint.source for tenant, endpoint in found.items()}
        assert sources == {
            "": "127.0.0.1", "acme": "127.0.0.9", "globex": None, "other": "127.0.0.1", "gone": "127.0.0.1",
        }  # fmt: skip
        assert found["globex"].security != found[""].security


async def test_a_pool_with_a_choice_is_asked_for_every_message() -> None:
    pools = PRIVATE + "pools: {default: [{address: 127.0.0.1}, {address: 127.0.0.2}]}\n"
    async with resolving(settings(pools)) as (resolver, _):
        sources = set()
        for number in range(40):
            [(endpoint, _)] = await resolver.find(Zone(), "one.example", f"message {number}")
            sources.add(endpoint.source)
        assert sources == {"127.0.0.1", "127.0.0.2"}


# ---- the source address

POOLS = st.lists(
    st.builds(
        PoolAddress,
        st.sampled_from([None, "127.0.0.1", "127.0.0.2", "::1", "fd00::2"]),
        st.none(),
        st.integers(0, 5),
    ),
    max_size=6,
)


@given(POOLS, st.text(max_size=30), st.sampled_from(["192.0.2.1", "2001:db8::1"]))
def test_the_source_fits_and_stays(pool: list[PoolAddress], message: str, ip: str) -> None:
    """Of the target's family or any, with a weight, and the same for every attempt of a message."""
    source = choose_source(pool, message, "", ip)
    assert choose_source(pool, message, "", ip) == source
    fitting = [
        entry
        for entry in pool
        if entry.weight and (entry.address is None or (":" in entry.address) == (":" in ip))
    ]
    assert source in fitting if fitting else source is None


@given(POOLS, st.text(max_size=30), st.sampled_from(["192.0.2.1", "2001:db8::1"]), st.data())
def test_an_address_that_is_preferred(
    pool: list[PoolAddress], message: str, ip: str, data: st.DataObject
) -> None:
    """It is taken if it could be drawn; else nothing changes."""
    preferred = data.draw(st.sampled_from([entry.address or "" for entry in pool] + ["203.0.113.9"]))
    drawn, source = choose_source(pool, message, "", ip), choose_source(pool, message, preferred, ip)
    could = [
        entry
        for entry in pool
        if entry.address == preferred and entry.weight and (":" in preferred) == (":" in ip)
    ]
    assert source in could if could else source == drawn


def test_sources_by_weight() -> None:
    pool = [PoolAddress("127.0.0.1", weight=1), PoolAddress("127.0.0.2", weight=3)]
    sources = [choose_source(pool, f"message {number}", "", "192.0.2.1") for number in range(4000)]
    chosen = Counter(source.address for source in sources if source is not None)
    assert 800 < chosen["127.0.0.1"] < 1200


def choices(*last_parts: int) -> list[str | None]:
    """The addresses of 9,000 messages, with a pool of these addresses of one weight."""
    pool = [PoolAddress(f"127.0.0.{part}") for part in last_parts]
    found = [choose_source(pool, f"message {number}", "", "192.0.2.1") for number in range(9000)]
    return [source.address if source else None for source in found]


def test_an_address_more_takes_its_share_and_no_more() -> None:
    """A ninth of the messages move, all of them to the new one; when it goes, only they move back."""
    eight, nine = choices(*range(1, 9)), choices(*range(1, 10))
    moved = {after for before, after in zip(eight, nine, strict=True) if before != after}
    assert moved == {"127.0.0.9"}
    assert 850 < Counter(nine)["127.0.0.9"] < 1150
    assert min(Counter(nine).values()) > 850


# ---- credentials


def test_credentials(directory: Path) -> None:
    assert credentials(Zone()) is None
    path = directory / "password"
    path.write_text("  s3cret \nanother line\n")
    zone = Zone(smarthost_auth=SmarthostAuth("user", path))
    assert credentials(zone) == ("user", "s3cret")
    assert read_password(zone) == "s3cret"
    path.unlink()
    with pytest.raises(ConfigError, match="the password cannot be read"):
        read_password(zone)
    with pytest.raises(DestinationFailed, match="the password cannot be read") as failed:
        credentials(zone)
    assert (failed.value.status, failed.value.permanent) == ("4.7.0", False)
