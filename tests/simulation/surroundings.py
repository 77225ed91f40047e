"""The hosts of a scenario, their names, the network between them and the relay, and what these must have seen."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import yaml

from tests.kit.relay import Stage
from tests.kit.tls_sink import TlsSink
from tests.simulation.network import Address, Conditions, drawn
from tests.simulation.scenario import HUB, PASSWORDS, SENDERS, STRICT_DOMAIN, WARMING, Receiver, Scenario
from tests.simulation.tls import server_context
from tests.simulation.virtual import VirtualLoop
from zonemta_py.egress.paths import STORED_S
from zonemta_py.sink.script import Script, load_script
from zonemta_py.sink.server import Sink
from zonemta_py.sink.sink_limits import LimitName, SinkLimits

SLACK = "500ms"  # of a limit: by which the delays of two messages differ
LIMITED_HOST = "127.0.1.1"  # the receiver with limits
WARMUP_ENDS_S = 16 * 3600.0  # the rest of the day on which a simulation begins
HOSTS = [*(f"mx.d{n}.example" for n in range(6)), f"mx.{HUB}"]


class Surroundings:
    """The hosts of ``scenario``, their names, and the network between them and the relay."""

    def __init__(self, scenario: Scenario, stage: Stage, loop: VirtualLoop, r: Random) -> None:
        self._scenario, self._stage, self._loop, self._r = scenario, stage, loop, r
        self._network = loop.network
        self._limited: Conditions | None = (
            None  # of all connections to the receiver with limits: its delay
        )

    async def begin(self) -> None:
        """Start the receivers."""
        for n, each in enumerate(self._scenario.receivers):
            await self._receiver(each, self._scenario.limits if n == 0 else {})
        for domain in dict.fromkeys(each.rpartition("@")[2] for each in SENDERS if each):
            await self._stage.receiver(domain)
        if self._scenario.hub:
            await self._receiver(Receiver(HUB, "usual", (), (), self._scenario.hub), {})
        records = dict(self._stage.names.records) | {"none.example": {}}
        if self._scenario.two_hosts:
            records["two.example"] = {"MX": ["10 mx.d0.example.", "20 mx.d1.example."]}
        self._network.names = lambda: records
        self._network.conditions = self._conditions
        self._network.name_delay_s = self._name_delay_s

    async def _receiver(self, each: Receiver, limits: Mapping[str, Any]) -> None:
        providers: Sequence[SinkLimits] = ()
        if limits:
            path = self._stage.directory / "sink.yaml"
            limits = {"name": "big", "slack": SLACK, **limits}
            path.write_text(yaml.safe_dump({"rules": [], "providers": [limits]}))
            providers = load_script(path).providers

        def made(script: Script, **options: Any) -> Sink:
            return Sink(Script(each.rules, providers), **options)

        if not each.tls:
            await self._stage.receiver(each.domain, kind=made, extensions=each.extensions)
            return
        hosts = ["mx.other.example"] if each.tls == "other" else HOSTS
        _, context = server_context(self._stage.directory, *hosts)

        def encrypting(script: Script, **options: Any) -> Sink:
            return TlsSink(Script(each.rules, providers), **options)

        cuts = self._r.randint(1, 3) if each.tls == "cut" else 0
        await self._stage.receiver(
            each.domain, kind=encrypting, context=context, cuts=cuts, login=each.domain == HUB
        )

    def judge_tls(self) -> Iterator[str]:
        """Mail of the zone that requires TLS, which went without, or to a host with the certificate of another."""
        for each in self._scenario.receivers if self._scenario.tls else ():
            sink = self._stage.sinks[each.domain]
            if not isinstance(sink, TlsSink):
                envelopes = [(message.sender, False) for message in sink.messages]
            else:
                envelopes = [
                    (sender, secure and each.tls != "other") for sender, secure in sink.envelopes
                ]
            for sender, is_verified in envelopes:
                if sender.endswith(f"@{STRICT_DOMAIN}") and not is_verified:
                    yield f"mail of {sender} went to {each.domain} without TLS, or to another host"

    def judge_passwords(self) -> Iterator[str]:
        """A password that went without TLS, or to another host, and mail in a session of another domain."""
        hub = self._stage.sinks.get(HUB)
        if not isinstance(hub, TlsSink):
            return
        for password, secure in hub.passwords:
            if not secure or self._scenario.hub == "other":
                yield f"'{password}' went without TLS, or to another host"
        for recipient, password in hub.logins:
            if password != PASSWORDS.get(recipient.rpartition("@")[2]):
                yield f"mail to {recipient} went by the session of '{password}'"

    def _conditions(self, to: Address) -> Conditions:
        if self._scenario.limits and to[0] == LIMITED_HOST:
            if self._limited is None:
                self._limited = Conditions(self._r.choice([0.0, 0.001, 0.02]))
            return self._limited
        return drawn(self._r, self._scenario.failing)

    def _name_delay_s(self, name: str) -> float | None:
        if self._r.random() < self._scenario.failing_names:
            return None
        return self._r.choice([0.0, 0.002, 0.1])

    def judge(self, began_s: Sequence[float], unanswered: Sequence[tuple[float, int]]) -> Iterator[str]:
        """The limits that were exceeded.

        ``began_s``: of the relays. A rate of less than STORED_S begins again with each. ``unanswered``: messages that were sent when
        a relay died, and are not counted later.
        """
        left = [count for _, count in unanswered]
        for sink in self._stage.sinks.values():
            for provider in sink.providers.values():
                periods_s = [each.per_s for each in provider.limits.rate]
                short_s = max((each for each in periods_s if each < STORED_S), default=0.0)
                # A message that the first host refused goes to the second one after a wait, too late for a period of a second.
                if short_s and self._scenario.two_hosts:
                    periods_s = []
                for at_s, limit, client in provider.violations:
                    if limit is LimitName.RATE:
                        uncounted = [
                            n
                            for n, (died_s, _) in enumerate(unanswered)
                            if left[n] and 0 <= at_s - died_s < max(periods_s, default=0.0)
                        ]
                        if uncounted:
                            left[uncounted[0]] -= 1
                            continue
                        if not periods_s or any(0 <= at_s - each < short_s for each in began_s):
                            continue
                    yield f"{limit} exceeded by {client} at {at_s:.3f}"

    def judge_warmup(self, records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """The number of the first day, which is exact but for recipients whose delivery was interrupted."""
        domains = {self._scenario.receivers[0].domain, "two.example"}
        uncounted = sum(
            each["event"] == "uncertain" and each["recipient"].rpartition("@")[2] in domains
            for each in records
        )
        for sink in self._stage.sinks.values():
            for provider in sink.providers.values():
                sent, most = provider.account(WARMING).recipients, self._scenario.warmup
                if most and sent > most + uncounted and self._loop.time() < WARMUP_ENDS_S:
                    yield f"{sent} recipients from {WARMING} on a day with {most}, and {uncounted} were not counted"

    async def end(self) -> None:
        """Stop the receivers."""
        for sink in self._stage.sinks.values():
            await sink.close()
