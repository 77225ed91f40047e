"""MTA-STS policies from a real name server and a real web server: found, kept, renewed, missing, hostile."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.deadlines import scaled, until
from tests.kit.policy_server import PolicyServer, policies_served, policy
from zonemta_py.config.endpoints import HostPort
from zonemta_py.config.endpoints import NameServer as Server
from zonemta_py.config.schema import Resolver
from zonemta_py.config.values import Seconds
from zonemta_py.core import clock
from zonemta_py.core.errors import DestinationFailed
from zonemta_py.delivery import dns, sts_policies
from zonemta_py.delivery.dns import MxResolver
from zonemta_py.delivery.sts_policies import RETRY_S, StsPolicies, StsPolicy, Trust
from zonemta_py.sink.nameserver import SERVFAIL, NameServer
from zonemta_py.smtp.mx_order import Host

ENFORCED = StsPolicy("enforce", ("mx.a.example",), 86400)


@dataclass
class Looking:
    """Policies, and where they come from; ``now_s`` is the time."""

    policies: StsPolicies
    trust: Trust
    web: PolicyServer
    names: NameServer
    monkeypatch: pytest.MonkeyPatch
    now_s: float = 1000.0

    async def of(self, domain: str = "a.example") -> StsPolicy | None:
        return await self.policies.of(domain, self.trust)

    def publish(self, text: str, number: str, domain: str = "a.example") -> None:
        """The policy of ``domain``, with the id ``number``."""
        self.web.texts[f"mta-sts.{domain}"] = text
        self.names.records |= {
            f"_mta-sts.{domain}": {"TXT": [f'"v=STSv1; id={number};"']},
            f"mta-sts.{domain}": {"A": ["127.0.0.1"]},
        }

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.policies._resolver.configure(self.policies._resolver._settings)  # drops answers


@asynccontextmanager
async def looking(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Looking]:
    names = NameServer({}, 60)
    port = await names.start()
    resolver = MxResolver(Resolver((Server(HostPort("127.0.0.1", port)),), Seconds(scaled(0.6))))
    policies = StsPolicies(resolver)
    async with policies_served(directory, monkeypatch, "mta-sts.a.example", "mta-sts.b.example") as web:
        made = Looking(policies, Trust(web.ca_file, True), web, names, monkeypatch)
        monkeypatch.setattr(clock, "monotonic_s", lambda: made.now_s)
        try:
            yield made
        finally:
            policies.close()
            resolver.close()
            names.close()


async def test_a_policy_is_fetched_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with looking(directory, monkeypatch) as found:
        found.publish(policy("enforce", "mx.a.example"), "1")
        assert await asyncio.gather(*(found.of() for _ in range(20))) == [ENFORCED] * 20
        assert await found.of() == ENFORCED
        assert found.web.asked == ["mta-sts.a.example"]
        assert found.names.queries["_mta-sts.a.example", "TXT"] == 1
        found.later(61)
        assert await found.of() == ENFORCED
        assert found.names.queries["_mta-sts.a.example", "TXT"] == 2, "its TTL was over"
        assert found.web.asked == ["mta-sts.a.example"], "the id is the same"


async def test_another_policy(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with looking(directory, monkeypatch) as found:
        found.publish(policy("enforce", "mx.a.example"), "1")
        assert await found.of() == ENFORCED
        found.publish(policy("none"), "2")
        found.later(61)
        assert await found.of() == StsPolicy("none", (), 86400)


async def test_domains_without_a_policy(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with looking(directory, monkeypatch) as found:
        assert await found.of() is None
        found.names.records |= {"_mta-sts.b.example": SERVFAIL}
        assert await found.of("b.example") is None
        assert found.web.asked == []


async def test_a_policy_stays_until_its_age(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is gone, cannot be looked up, or names a policy that cannot be had: an attacker could do the same."""
    async with looking(directory, monkeypatch) as found:
        found.publish(policy("enforce", "mx.a.example", max_age_s=10_000), "1")
        kept = await found.of()
        assert kept is not None
        changes: list[Mapping[str, Sequence[str]] | str] = [SERVFAIL, {}]
        for number, change in enumerate(changes):
            found.names.records |= {"_mta-sts.a.example": change}
            found.later(RETRY_S + 1)
            assert await found.of() == kept, number
        found.publish("nothing", "2")
        found.later(RETRY_S + 1)
        assert await found.of() == kept
        asked = len(found.web.asked)
        found.later(RETRY_S - 1)
        assert await found.of() == kept
        assert len(found.web.asked) == asked, "not asked again so soon"
        found.later(10_000)
        assert await found.of() is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"status": 404}, "status 404"),
        ({"status": 302}, "status 302"),
        ({"kind": "text/html"}, "the type is text/html"),
        ({"texts": {}}, "status 404"),
        ({"texts": {"mta-sts.a.example": "x" * 70_000}}, "more than 65536 bytes"),
        ({"texts": {"mta-sts.a.example": "version: STSv1\nmode: on"}}, "mode: expected"),
    ],
)
async def test_web_servers_that_are_wrong(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, object],
    problem: str,
) -> None:
    async with looking(directory, monkeypatch) as found:
        found.publish(policy("enforce", "mx.a.example"), "1")
        for name, value in change.items():
            setattr(found.web, name, value)
        assert await found.of() is None
        assert (
            f"a.example: the MTA-STS policy cannot be used: https://mta-sts.a.example:{found.web.port}"
            in caplog.text
        )
        assert problem in caplog.text


async def test_a_certificate_of_another(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For another name, by an unknown authority, with a CA file that cannot be read."""
    async with looking(directory, monkeypatch) as found:
        found.publish(policy("enforce", "mx.c.example"), "1", "c.example")
        assert await found.of("c.example") is None
        assert "certificate verify failed: Hostname mismatch" in caplog.text
        found.publish(policy("enforce", "mx.a.example"), "1")
        assert await found.policies.of("a.example", Trust(None, True)) is None
        assert "self-signed certificate" in caplog.text or "unable to get local issuer" in caplog.text
        assert await found.policies.of("a.example", Trust(directory / "none.pem", True)) is None
        assert "none.pem" in caplog.text
        assert await found.of() == ENFORCED


async def test_a_web_server_that_hangs(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It holds only the mail of its domain, and not for long."""
    async with looking(directory, monkeypatch) as found:
        monkeypatch.setattr(sts_policies, "FETCH_S", 0.3)
        found.publish(policy("enforce", "mx.a.example"), "1")
        found.web.hangs = asyncio.Event()
        held = asyncio.ensure_future(found.of())
        await until(lambda: found.web.asked, "a request")
        assert await found.of("b.example") is None
        assert await held is None
        assert "no response within 0.3 s" in caplog.text
        found.web.hangs = None
        found.later(RETRY_S + 1)
        assert await found.of() == ENFORCED


async def test_nothing_private_is_asked(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with looking(directory, monkeypatch) as found:
        found.publish(policy("enforce", "mx.a.example"), "1")
        assert await found.policies.of("a.example", Trust(found.web.ca_file, False)) is None
        assert "mta-sts.a.example has only private addresses" in caplog.text
        assert found.web.asked == []


async def test_hosts_that_a_policy_permits(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = Host(10, "mx.a.example", ("127.0.0.9",)), Host(20, "mx.evil.example", ("127.0.0.8",))
    async with looking(directory, monkeypatch) as found:
        permitted = found.policies.permitted
        assert await permitted("[127.0.0.9]", (other,), found.trust) == ((other,), "opportunistic")
        assert await permitted("a.example", (other,), found.trust) == ((other,), "opportunistic")
        found.publish(policy("testing", "mx.a.example"), "1")
        found.later(dns.NEGATIVE_TTL_S + 1)
        assert await permitted("a.example", (ours, other), found.trust) == (
            (ours, other),
            "opportunistic",
        )
        found.publish(policy("enforce", "mx.a.example"), "2")
        found.later(61)
        assert await permitted("a.example", (ours, other), found.trust) == ((ours,), "required")
        with pytest.raises(
            DestinationFailed, match=r"does not permit its MX hosts: mx\.evil\.example"
        ) as failed:
            await permitted("a.example", (other, ours._replace(ips=())), found.trust)
        assert (failed.value.status, failed.value.permanent) == ("4.7.5", False)


async def test_the_cache_is_bounded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with looking(directory, monkeypatch) as found:
        monkeypatch.setattr(sts_policies, "CACHE_MAX", 3)
        found.publish(policy("enforce", "mx.a.example"), "1")
        await found.of()
        for number in range(3):
            await found.of(f"d{number}.example")
        assert len(found.policies._cache) == 3
        assert not found.policies._running
