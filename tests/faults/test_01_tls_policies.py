"""01. What a zone asks of TLS holds for all its mail, whatever another zone sent to the same place just before."""

from pathlib import Path
from random import Random

import pytest

from tests.kit.deadlines import until
from tests.kit.listener import certificate
from tests.kit.policy_server import policies_served, policy
from tests.kit.queue import everything
from tests.kit.relay import Stage, received, relaying, send, staged
from tests.kit.tls_sink import TlsSink, server_context
from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.endpoints import NameServer as Server
from zonemta_py.config.load import parse_config
from zonemta_py.config.schema import Config, Resolver
from zonemta_py.config.values import Seconds
from zonemta_py.config.zones import SmarthostAuth, Zone
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.delivery.dns import MxResolver
from zonemta_py.delivery.endpoints import EndpointResolver
from zonemta_py.delivery.sts_policies import StsPolicies, StsPolicy, Trust, parse_policy
from zonemta_py.relay.relay import Relay
from zonemta_py.sink.nameserver import NameServer

SLOW = {"delays": ["1h"]}
PROCESSES = [{"receivers": 0, "senders": 0}, {"receivers": 2, "senders": 2}]
TURN_ORDERS = [["plain", "strict"], ["strict", "plain"]]


def two_zones(stage: Stage, processes: dict[str, int], **strict: object) -> Config:
    """``plain`` asks for nothing, ``strict`` for what is given; the domain of the sender names the zone."""
    common = {"port": stage.port, "retry": SLOW}
    zones = {"plain": common, "strict": {**common, **strict}}
    routing = [{"sender_domain": f"{name}.example", "zone": name} for name in zones]
    return stage.config(zones=zones, routing=routing, processes=processes)


async def deferred(relay: Relay, zone: str, count: int) -> None:
    """Wait until ``zone`` has ``count`` deferred recipients."""
    prefix = f"deferred/{zone}/".encode()
    await until(
        lambda: sum(key.startswith(prefix) for key in everything(relay.queue.store)) == count,
        f"{count} deferred in {zone}",
    )


@pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])
async def test_tls_that_is_required(directory: Path, processes: dict[str, int]) -> None:
    """Receivers without TLS, and with a certificate that no authority has signed; each zone is first at one of each."""
    cert, key, _ = certificate(directory)
    async with staged(directory) as stage:
        context = server_context(cert, key)
        for first, _ in TURN_ORDERS:
            await stage.receiver(f"clear.{first}-first.example", kind=TlsSink)
            await stage.receiver(f"own.{first}-first.example", kind=TlsSink, context=context)
        async with relaying(two_zones(stage, processes, tls="required")) as relay:
            for number, order in enumerate(TURN_ORDERS):
                for name in order:
                    for kind in ("clear", "own"):
                        domain = f"{kind}.{order[0]}-first.example"
                        await send(relay, [f"x@{domain}"], sender=f"s@{name}.example")
                        if name == "plain":
                            await received(stage.sinks[domain], 1)
                    if name == "strict":
                        await deferred(relay, "strict", 2 * number + 2)
            await deferred(relay, "plain", 0)
        for domain, sink in stage.sinks.items():
            assert isinstance(sink, TlsSink)
            assert sink.envelopes == [("s@plain.example", domain.startswith("own"))]


@pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])
@pytest.mark.parametrize("tls", ["required", "implicit"])
async def test_the_password_of_a_smarthost(directory: Path, tls: str, processes: dict[str, int]) -> None:
    """It is never sent in clear text: not to a smarthost that another zone uses without one, nor where STARTTLS fails."""
    (directory / "password").write_text("secret\n")
    async with staged(directory) as stage:
        clear = await stage.receiver("clear.example", kind=TlsSink, login=True)
        broken = await stage.receiver("broken.example", kind=TlsSink, login=True, cuts=100)
        assert isinstance(clear, TlsSink)
        assert isinstance(broken, TlsSink)
        hosts = [f"127.0.1.1:{stage.port}", f"127.0.1.2:{stage.port}"]
        auth = {"username": "me", "password_file": "password"}
        zones = {
            "plain": {"tls": "off", "smarthost": hosts[0], "retry": SLOW},
            "strict": {"tls": tls, "smarthost": hosts[0], "smarthost_auth": auth, "retry": SLOW},
            "second": {"tls": tls, "smarthost": hosts[1], "smarthost_auth": auth, "retry": SLOW},
        }
        routing = [{"sender_domain": f"{name}.example", "zone": name} for name in zones]
        config = stage.config(zones=zones, routing=routing, processes=processes)
        async with relaying(config) as relay:
            for count, name in enumerate(("plain", "strict", "plain"), 1):
                await send(relay, ["x@a.example"], sender=f"s@{name}.example")
                if name == "plain":
                    await received(clear, (count + 1) // 2)
                else:
                    await deferred(relay, name, 1)
            await send(relay, ["x@a.example"], sender="s@second.example")
            await deferred(relay, "second", 1)
        assert (clear.passwords, broken.passwords) == ([], [])
        assert clear.envelopes == [("s@plain.example", False)] * 2
        assert broken.envelopes == []


@pytest.mark.parametrize("processes", PROCESSES, ids=["0/0", "2/2"])
async def test_mail_under_an_enforced_policy(
    directory: Path, monkeypatch: pytest.MonkeyPatch, processes: dict[str, int]
) -> None:
    """Each zone is first at a host as the policy has it, without TLS, with another's certificate, and not permitted."""
    kinds = ("right", "clear", "other", "foreign")
    domains = [
        (f"{kind}.{order[0]}-first.example", kind, order) for order in TURN_ORDERS for kind in kinds
    ]
    served = policies_served(directory, monkeypatch, *(f"mta-sts.{domain}" for domain, _, _ in domains))
    async with staged(directory) as stage, served as web:
        for domain, kind, _ in domains:
            name = "mx.elsewhere.example" if kind == "other" else f"mx.{domain}"
            context = None if kind == "clear" else web.context(name)
            await stage.receiver(domain, kind=TlsSink, context=context)
            permitted = "mx.elsewhere.example" if kind == "foreign" else f"mx.{domain}"
            web.publish(stage.names, domain, policy("enforce", permitted))
        config = two_zones(stage, processes, tls="mta-sts", tls_ca_file=str(web.ca_file))
        async with relaying(config) as relay:
            waiting = 0
            for domain, kind, order in domains:
                sink, arrived = stage.sinks[domain], 0
                for name in order:
                    await send(relay, [f"x@{domain}"], sender=f"s@{name}.example")
                    if name == "plain" or kind == "right":
                        arrived += 1
                        await received(sink, arrived)
                    else:
                        waiting += 1
                        await deferred(relay, "strict", waiting)
                assert isinstance(sink, TlsSink)
                came = {(f"s@{name}.example", kind != "clear") for name in order}
                assert set(sink.envelopes) == {
                    each for each in came if kind == "right" or "plain" in each[0]
                }
            await deferred(relay, "plain", 0)
        assert len(set(web.asked)) == len(domains)


class OnePolicy(StsPolicies):
    """Every domain has this policy."""

    policy: StsPolicy

    async def of(self, domain: str, trust: Trust) -> StsPolicy | None:
        return self.policy


@pytest.mark.parametrize("first", ["opportunistic", "mta-sts"])
async def test_an_enforced_policy(first: str) -> None:
    """A zone with ``tls: mta-sts`` and one without: the host is permitted, and then it is another one."""
    records = {"a.example": {"MX": ["10 mx.a.example."]}, "mx.a.example": {"A": ["127.0.0.11"]}}
    server = NameServer(records, 60)
    resolver = MxResolver(Resolver((Server(HostPort("127.0.0.1", await server.start())),), Seconds(5)))
    policies = OnePolicy(resolver)
    text = "version: STSv1\nmode: enforce\nmx: {}\nmax_age: 86400\n"
    policies.policy = parse_policy(text.format("mx.a.example").encode())
    config = parse_config("allow_private_destinations: true", Path("z.yaml"))
    endpoints = EndpointResolver(config, "relay.example", resolver, policies, Random(1))
    zones = {tls: Zone(tls=tls) for tls in ("opportunistic", "mta-sts")}
    order = [first, *(name for name in zones if name != first)]
    try:
        for name in [*order, *order]:
            [(found, _)] = await endpoints.find(zones[name], "a.example", "m")
            assert found.tls == ("required" if name == "mta-sts" else "opportunistic")
        policies.policy = parse_policy(text.format("mx.other.example").encode())
        other = EndpointResolver(config, "relay.example", resolver, policies, Random(1))
        for name in order:
            if name == "mta-sts":
                with pytest.raises(DestinationFailed, match="does not permit"):
                    await other.find(zones[name], "a.example", "m")
            else:
                assert len(await other.find(zones[name], "a.example", "m")) == 1
    finally:
        server.close()


async def test_sessions_of_items_of_a_zone() -> None:
    """What sessions must have in common: user, file of the password, TLS, authorities, time limits."""
    config = parse_config("allow_private_destinations: true", Path("z.yaml"))
    resolver = MxResolver(Resolver())
    endpoints = EndpointResolver(config, "relay.example", resolver, StsPolicies(resolver), Random(1))
    settings = [
        Zone(),
        Zone(tls="off"),
        Zone(tls_ca_file=Path("ca")),
        Zone(smarthost_auth=SmarthostAuth("me", Path("one"))),
        Zone(smarthost_auth=SmarthostAuth("me", Path("two"))),
    ]
    found = [await endpoints.find(zone, "[127.0.0.11]", "m") for zone in settings]
    assert len({each[0][0].security for each in found}) == len(settings)
    resolver.close()
