"""The named workloads of ``zonemta bench``, and groups of them."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Scenario:
    """One workload: ``messages`` of ``size`` bytes to ``recipients`` each, over ``sessions``."""

    name: str
    title: str
    messages: int
    sessions: int
    recipients: int = 1
    size: int = 4096
    keep: bool = True  # many messages on one connection; else one connection for each
    per_second: int = 0  # the pace of submission; 0: as fast as the relay accepts
    delay_ms: int = 0  # before each reply of the sink
    connections: int = 100  # of the zone
    flood: int = 0  # messages of another submitter, queued before and not counted
    same_host: bool = False  # the flood comes from the same address, with senders of another domain
    backlog: int = 0  # recipients queued at the start, nine of ten for a domain that does not answer
    dkim: str = ""  # the kind of key that signs: rsa or ed25519
    tls: bool = False  # encrypted on both sides
    soak: bool = False  # figures over time as well
    churn: int = 0  # recipients stored in the queue and deleted before the start
    dead: int = 0  # domains that do not answer, a message for each queued at the start
    domains: int = 0  # of the recipients, each a destination of its own; 0: one smarthost
    auth: bool = False  # with AUTH on each connection
    pool: str = ""  # two addresses; "limited": with limits of the provider and of each, and a warm-up, none of which is reached

    @property
    def for_peers(self) -> bool:
        """Whether other relays can run it without more set-up."""
        return not (self.dkim or self.backlog or self.tls or self.churn or self.domains or self.auth)

    def scaled(self, factor: float) -> "Scenario":
        """The scenario with ``factor`` times the messages, at least one for each session."""
        return replace(
            self,
            messages=max(self.sessions, int(self.messages * factor)),
            flood=int(self.flood * factor),
            backlog=int(self.backlog * factor),
            churn=int(self.churn * factor),
            dead=int(self.dead * factor),
        )


def _sessions(connections: int, domains: int) -> Scenario:
    """A message to each of ``domains``, or several, while the zone keeps up to ``connections`` sessions."""
    title = f"{connections:,} connections, {domains:,} " + ("domain" if domains == 1 else "domains")
    return Scenario(
        f"sessions-{connections}x{domains}",
        title,
        max(20_000, domains),
        30,
        connections=connections,
        domains=domains,
    )


LIMITED = ("kept", "connect", "list50")


def _by_mx(name: str, *, limited: bool) -> Scenario:
    """A named scenario from a pool to a domain found in DNS: limits of providers do not concern a smarthost."""
    base = next(each for each in _UNLIMITED if each.name == name)
    end, title, pool = ("limits", "limits", "limited") if limited else ("mx", "by MX", "free")
    return replace(base, name=f"{name}-{end}", title=f"{base.title}, {title}", domains=1, pool=pool)


SESSIONS = tuple(_sessions(c, d) for c in (100, 1_000, 10_000) for d in (1, 10_000, 50_000))
_UNLIMITED = (
    Scenario("kept", "4 KB, kept sessions", 20_000, 30),
    Scenario("connect", "4 KB, one connection each", 10_000, 30, keep=False),
    Scenario("auth", "4 KB, a connection with AUTH each", 10_000, 30, keep=False, auth=True),
    Scenario("list50", "4 KB, 50 recipients", 1_500, 20, recipients=50),
    Scenario("list1000", "4 KB, 1,000 recipients", 100, 10, recipients=1000),
    Scenario("64k", "64 KB, kept sessions", 4_000, 20, size=65_536),
    Scenario("20m", "20 MB, kept sessions", 60, 10, size=20 << 20),
    Scenario("dkim", "4 KB, DKIM with RSA-2048", 8_000, 30, dkim="rsa"),
    Scenario("dkim-ed25519", "4 KB, DKIM with Ed25519", 8_000, 30, dkim="ed25519"),
    Scenario("tls", "4 KB, TLS in and out", 8_000, 30, tls=True),
    Scenario("tls-connect", "4 KB, a TLS handshake each", 3_000, 30, keep=False, tls=True),
    Scenario("delay", "4 KB, 20 ms to the receiver", 5_000, 30, delay_ms=20),
    Scenario("idle", "single messages, idle relay", 200, 1, per_second=20),
    Scenario(
        "mixed",
        "single messages, a flood",
        200,
        1,
        per_second=20,
        delay_ms=20,
        connections=20,
        flood=8_000,
    ),
    Scenario(
        "senders",
        "single messages, a flood of the same host",
        200,
        1,
        per_second=20,
        delay_ms=20,
        connections=20,
        flood=4_000,
        same_host=True,
    ),
    Scenario("deep", "4 KB, a blocked backlog", 20_000, 30, backlog=1_000_000),
    Scenario(
        "dead",
        "single messages, 5,000 dead domains",
        400,
        1,
        per_second=20,
        dead=5_000,
        domains=200,
    ),
    Scenario("churned", "4 KB, 5 million came and went", 20_000, 30, churn=5_000_000),
    Scenario("soak", "1,000 a second, over time", 60_000, 30, per_second=1000, soak=True),
)
SCENARIOS = (
    *_UNLIMITED,
    *(_by_mx(name, limited=limited) for name in LIMITED for limited in (False, True)),
    *SESSIONS,
)
GROUPS = {
    "standard": ("kept", "connect", "list50", "64k", "20m"),
    "limits": tuple(each.name for each in SCENARIOS if each.name.endswith(("-mx", "-limits"))),
    "sessions": tuple(scenario.name for scenario in SESSIONS),
    "all": tuple(scenario.name for scenario in SCENARIOS),
}
