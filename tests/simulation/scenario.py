"""What a seed decides: receivers, limits and retries of the relay, clients, operators, restarts and kills."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, NamedTuple

from zonemta_py.sink.script import Rule, Step

GREYLISTED = "451 4.7.1 greylisted, try again"
BLOCKED = "550 5.7.1 Service unavailable; client host blocked using a list"
WITH_PIPELINING = ("PIPELINING", "8BITMIME", "SIZE 1000000", "DSN")
WITHOUT = ("8BITMIME", "SIZE 1000000")
# The addresses of the clients of tenants, which are trusted for their domains.
NETWORKS = {"acme": "127.0.0.11", "globex": "127.0.0.12"}
SENDERS: Sequence[str] = ("s@x.example", "ann@acme.example", "bob@globex.example", "")
ANSWERING_S = (
    8 * 3600.0
)  # within which all mail must have ended, behind the last action: it is given up after 3 h


CONNECTIONS_MAX = 8
STRICT_DOMAIN = "acme.example"
WARMING = "127.0.0.1"  # an address of the pool
ARCHIVE = "archive"  # the zone of a program that dequeues
FLOODING = "acme"  # the tenant
FIRST_OF_FLOOD, FIRST_OF_BURST = 1000, 2000  # numbers of messages
STOPPED = (
    "the relay stopped "  # in the reason for which mail is held that was interrupted POISON_AFTER times
)
POISON_AFTER = 3  # by default


def _dropped(r: Random) -> list[Rule]:
    step = r.choice([Step.MAIL, Step.RCPT, Step.DATA, Step.DOT])
    return [Rule(step, drop=True, times=r.randint(1, 4))]


def _stalled(r: Random) -> list[Rule]:
    step = r.choice([Step.CONNECT, Step.MAIL, Step.RCPT, Step.DOT])
    return [Rule(step, stall_s=r.choice([5.0, 100.0, 700.0, 4000.0]), times=r.randint(1, 3))]


def _crowded(r: Random) -> list[Rule]:
    limit = Rule(Step.RCPT, reply="452 4.5.3 too many recipients", after=r.randint(1, 3))
    return [limit, Rule(Step.DOT, reply="451 4.3.0 queue full", times=r.randint(1, 2))]


def _refused_at_dot(r: Random) -> list[Rule]:
    reply = r.choice(["554 5.6.0 no", "452 4.2.2 full", "421 4.3.2 bye"])
    return [Rule(Step.DOT, reply=reply, times=r.randint(1, 3))]


RECEIVERS: dict[str, Callable[[Random], list[Rule]]] = {
    "usual": lambda r: [],
    "greylisting": lambda r: [Rule(Step.RCPT, reply=GREYLISTED, times=r.randint(1, 3))],
    "deferring": lambda r: [Rule(Step.RCPT, reply="451 4.3.0 later", times=r.randint(1, 6))],
    "refusing": lambda r: [Rule(Step.RCPT, recipient="u*1@*", reply="550 5.1.1 no such user")],
    "cutting": _dropped,
    "silent": _stalled,
    "crowded": _crowded,
    "refusing at the dot": _refused_at_dot,
    "blocking": lambda r: [Rule(Step.MAIL, reply=BLOCKED, times=r.randint(1, 5))],
    "busy": lambda r: [Rule(Step.CONNECT, reply="421 4.3.2 busy", session=n) for n in range(1, r.randint(2, 6))],
    "full sessions": lambda r: [
        Rule(Step.MAIL, reply="421 4.7.0 too many messages in this session", session=n) for n in range(1, 9, 2)
    ],
}  # fmt: skip
# Receivers that answer at once, so that what a limit counts arrives when it is sent.
PROMPT = ("usual", "greylisting", "deferring", "refusing", "crowded", "refusing at the dot", "blocking")
OPERATIONS = (
    "restart", "kill", "kill", "flush", "reload", "suspend", "hold", "delete", "bounce", "power cut", "power cut", "kill in a call",
    "kill a process", "kill a process",
)  # fmt: skip
CLOCK_ERRORS_S = (-108_000.0, -3600.0, -30.0, 30.0, 3600.0, 108_000.0)
HUB = "hub.example"  # the domain of the smarthost
PASSWORDS = {"d0.example": "secret of the first", "d1.example": "secret of the second"}
SOME = "some"  # reads fail, of those of an opening
DISK_ERRORS = ("ENOSPC", "EIO", "EMFILE", "EROFS")


class Receiver(NamedTuple):
    """A host of a domain. ``tls``: whose certificate it has, own or other; cut: its first handshakes fail; empty: it has none."""

    domain: str
    kind: str
    rules: Sequence[Rule]
    extensions: tuple[str, ...]
    tls: str = ""


class Mail(NamedTuple):
    """A message of a client. ``key``: its submission key; ``again``: it is submitted twice; ``by``: smtp, http, or this program.

    ``zone``: which this program asks for.
    """

    number: int
    sender: str
    recipients: Sequence[str]
    data: bytes
    key: str  # that of the message, or one that others use too
    again: bool
    by: str
    zone: str = ""

    @property
    def owner(self) -> str:
        """Whose submission key it is: a tenant's, or that of those at the address without one."""
        return next((name for name in NETWORKS if f"@{name}." in self.sender), "")


class Action(NamedTuple):
    """What happens at ``at_s``: a message, or an operation, which ``name`` may concern for ``for_s``."""

    at_s: float
    what: str
    mail: Mail | None = None
    name: str = ""
    for_s: float = 0.0
    turns: int = 0  # of the loop before a kill, calls to the disk before a power cut; which calls of a failing disk fail
    by_s: float = 0.0  # of a clock


@dataclass(frozen=True)
class Scenario:
    """``zone`` and ``changes``: of the configuration. ``limits``: of the provider of the first domain, and its own; none if empty.
    ``tls``: mail from STRICT_DOMAIN has a zone of its own, where TLS is required.
    ``hub``: two domains have one smarthost, with a password each; whose certificate it has, as with a receiver.
    ``signed``: the domains of authors whose mail is signed, each with its key.
    ``archive``: a program dequeues the mail of a zone. ``rules``: of shaping.
    ``warmup``: recipients of the day there from WARMING, 0: any number.

    ``failing``: the part of the connections that fails; ``failing_names``: of the questions about names.
    """

    receivers: Sequence[Receiver]
    two_hosts: bool  # two.example has the first two receivers as its MX hosts
    zone: Mapping[str, Any]
    changes: Mapping[str, Any]
    limits: Mapping[str, Any]
    warmup: int
    tls: bool
    failing: float
    failing_names: float
    disk_fails: bool
    clock_is_wrong: bool
    hub: str
    signed: Sequence[str]
    archive: bool
    rules: Sequence[Mapping[str, Any]]
    store: str
    processes: int  # receivers, and senders
    actions: Sequence[Action]


def _mail(r: Random, number: int, domains: Sequence[str], senders: Sequence[str]) -> Mail:
    own, sender = domains[number % len(domains)], r.choice(senders)
    recipients = [
        f"u{number}_{n}@{r.choice(domains) if r.random() < 0.5 else own}"
        for n in range(r.choice([1, 1, 1, 2, 5, 20]))
    ]
    author = sender or "s@x.example"
    text = f"Subject: message {number}\r\nFrom: {author}\r\n\r\nbody {number}\r\n".encode()
    text += b"." * r.randint(0, 3) + b"x" * r.choice([0, 10, 5000]) + b"\r\n"
    if r.random() < 0.1:
        text += b"".join(b"%d\r\n" % n for n in range(r.choice([10_000, 40_000])))
    key = r.choice([f"key-{number}", f"key-{number}", "common"]) if r.random() < 0.3 else ""
    again, by = bool(key) and r.random() < 0.5, "smtp" if r.random() < 0.6 else "program"
    return Mail(number, sender, recipients, text, key, again, by)


def _operation(r: Random, span_s: float, domains: Sequence[str]) -> Action:
    return Action(
        r.uniform(0, span_s * 1.5 + 60),
        r.choice(OPERATIONS),
        name=r.choice([f"domain:{r.choice(domains)}", "zone:default"]),
        for_s=r.uniform(1, 1800),
        turns=r.randint(0, 60),
    )


def _failing_disk(r: Random, span_s: float) -> Action:
    at_s, for_s = r.uniform(0, span_s * 1.5 + 60), r.choice([0.1, 5.0, 60.0, 900.0])
    return Action(at_s, "failing disk", name=r.choice(DISK_ERRORS), for_s=for_s, turns=r.randint(0, 60))


def make(seed: int) -> Scenario:
    """The scenario of ``seed``."""
    r = Random(seed)
    receivers = []
    for n in range(r.randint(2, 6)):
        kind = r.choice([*RECEIVERS, "usual"])
        extensions = WITH_PIPELINING if r.random() < 0.6 else WITHOUT
        receivers.append(Receiver(f"d{n}.example", kind, RECEIVERS[kind](r), extensions))
    two_hosts = r.random() < 0.4
    domains = [each.domain for each in receivers] + ["two.example"] * two_hosts
    domains += ["none.example"] * (r.random() < 0.3)
    changes: dict[str, Any] = {}
    if r.random() < 0.4:
        changes["pools"] = {"default": [{"address": "127.0.0.1"}, {"address": "127.0.0.2"}]}
    senders = SENDERS
    if r.random() < 0.5:
        senders = tuple(each for each in SENDERS if "." in each and "@x." not in each)
        changes["tenants"] = {
            name: {
                "users": [user],
                "domains": [f"{name}.example"],
                "networks": [f"{NETWORKS[name]}/32"],
            }
            for name, user in (("acme", "ann"), ("globex", "bob"))
        }
    choices = {
        "sessions": r.randint(1, 2),
        "rate": r.choice(["6/1m", "30/1m", "2/1s", "40/1h"]),
        "messages_per_session": r.randint(1, 5),
    }
    limits = {name: value for name, value in choices.items() if r.random() < 0.5}
    if receivers[0].kind not in PROMPT:
        limits = {}
    tls = r.random() < 0.2
    if tls:
        receivers = [
            each._replace(tls=r.choice(["", "own", "own", "other", "cut"])) for each in receivers
        ]
    span_s = r.choice([10.0, 600.0, 3600.0])
    actions = [
        Action(r.uniform(0, span_s), "mail", _mail(r, n, domains, senders))
        for n in range(r.randint(5, 30))
    ]
    actions += [_operation(r, span_s, domains) for _ in range(r.randint(0, 10))]
    disk_fails = r.random() < 0.3
    if disk_fails:
        actions += [_failing_disk(r, span_s) for _ in range(r.randint(1, 4))]
    scenario = Scenario(
        receivers,
        two_hosts,
        zone={
            "retry": {
                "delays": r.choice([["1m"], ["5m", "30m"], ["30s", "2m", "10m"]]),
                "give_up_after": r.choice(["1h", "3h"]),
            },
            "connections": r.randint(1, CONNECTIONS_MAX),
            "connections_per_domain": r.randint(1, 4),
            "recipients_per_transaction": r.choice([1, 2, 10, 50]),
        },
        changes=changes,
        limits=limits,
        warmup=r.choice([1, 3, 10]) if limits and "pools" in changes else 0,
        tls=tls,
        failing=r.choice([0.0, 0.0, 0.03, 0.2]),
        failing_names=r.choice([0.0, 0.1, 0.3]),
        disk_fails=disk_fails,
        clock_is_wrong=False,
        hub="",
        signed=(),
        archive=False,
        rules=(),
        store=r.choice(["leveldb", "leveldb", "filesystem"]),
        processes=r.choice([0, 0, 2]),
        actions=sorted(actions, key=lambda each: each.at_s),
    )
    for name, change in LATER.items():
        scenario = change(Random(f"{seed} {name}"), scenario, span_s)
    return scenario


def idle(hours: float) -> Scenario:
    """A relay without mail, for so long; an operator who flushes its empty queue is the last to do something."""
    actions = [Action(hours * 3600, "flush")]
    nothing = replace(make(1), limits={}, changes={}, warmup=0, failing=0.0, failing_names=0.0)
    return replace(nothing, actions=actions, processes=0, store="leveldb")


# ---- What was added later draws from generators of its own, so that the rest of a seed stays what it was.


def _by_http(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    """Half of what this program submits comes by HTTP."""
    actions = [
        each._replace(mail=each.mail._replace(by="http"))
        if each.mail is not None and each.mail.by == "program" and r.random() < 0.5
        else each
        for each in scenario.actions
    ]
    return replace(scenario, actions=actions)


def _wrong_clock(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    if r.random() >= 0.15:
        return scenario
    actions = [
        each._replace(for_s=r.choice([5.0, 300.0, 5000.0]), by_s=r.choice(CLOCK_ERRORS_S))
        for each in _some(r, span_s, "wrong clock")
    ]
    return _with(replace(scenario, clock_is_wrong=True), actions)


def _failing_reads(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    if r.random() >= 0.15:
        return scenario
    actions = [
        each._replace(for_s=r.choice([0.1, 5.0, 60.0, 900.0]), turns=r.randint(0, 60))
        for each in _some(r, span_s, "failing reads")
    ]
    return _with(replace(scenario, disk_fails=True), actions)


def _smarthost(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    if r.random() >= 0.15:
        return scenario
    return replace(scenario, hub=r.choice(["own", "own", "other", "cut"]))


def _signed(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    domains = [f"{name}.example" for name in NETWORKS]
    return replace(scenario, signed=domains if r.random() < 0.15 else ())


def _deployments(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    """Some restarts, one soon after the other, while a receiver is slow."""
    if r.random() >= 0.1:
        return scenario
    slow = Rule(Step.DOT, stall_s=700.0, times=8)
    last = scenario.receivers[-1]._replace(kind="silent", rules=[slow])
    at_s = r.uniform(0, span_s)
    restarts = [Action(at_s + n * r.uniform(5, 90), "restart") for n in range(1, 6)]
    return _with(replace(scenario, receivers=[*scenario.receivers[:-1], last]), restarts)


def _many_ends(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    """Kills and power cuts in front of one of the next calls, some soon after another."""
    if r.random() >= 0.15:
        return scenario
    ends, at_s = [], 0.0
    for _ in range(8):
        at_s += r.choice([0.5, 5.0, span_s / 8])
        what = r.choice(["kill in a call", "power cut", "power cut"])
        ends.append(Action(at_s, what, turns=r.randint(1, 20)))
    return _with(scenario, ends)


def _syncs_that_fail(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    """Syncs fail for some seconds, in which a relay is killed; soon after the next start the power is cut."""
    if r.random() >= 0.1:
        return scenario
    found = []
    for _ in range(3):
        at_s, for_s = r.uniform(0, span_s + 60), r.uniform(1, 70)
        found.append(
            Action(at_s, "failing disk", name="EIO", for_s=for_s, turns=3 * r.randint(0, 20) + 1)
        )
        found.append(Action(at_s + for_s * r.random(), "kill", turns=r.randint(0, 60)))
        found.append(Action(at_s + for_s + r.uniform(0, 20), "power cut", turns=r.randint(1, 30)))
    return _with(replace(scenario, disk_fails=True), found)


def _openings(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    """The disk refuses some reads while a relay is started, a few times; that store reads all keys then."""
    if r.random() >= 0.1:
        return scenario
    found = []
    for _ in range(4):
        at_s = r.uniform(0, span_s + 60)
        found.append(Action(at_s, "failing reads", name=SOME, for_s=r.choice([0.1, 5.0, 60.0])))
        found.append(Action(at_s, "restart"))
    return _with(replace(scenario, disk_fails=True, store="filesystem"), found)


def _program(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    """A program dequeues half of what this program submits."""
    if r.random() >= 0.12:
        return scenario
    actions = [
        each._replace(mail=each.mail._replace(zone=ARCHIVE, by="program"))
        if each.mail is not None and each.mail.by != "smtp" and r.random() < 0.5
        else each
        for each in scenario.actions
    ]
    return replace(scenario, archive=True, actions=actions)


def _flood(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    """A tenant that has limits sends much at once, to the receiver of others."""
    if "tenants" not in scenario.changes or r.random() >= 0.2:
        return scenario
    tenants = {name: dict(each) for name, each in scenario.changes["tenants"].items()}
    tenants[FLOODING]["limits"] = {"messages": [r.choice(["200/1h", "60/1h"])]}
    at_s, domain = r.uniform(0, span_s), r.choice(scenario.receivers).domain
    flood = _burst(FIRST_OF_FLOOD, r.choice([50, 150]), at_s, domain)
    zone = {**scenario.zone, "bounce": {"reports_per_hour": None}}  # no digest in place of reports
    return _with(replace(scenario, changes={**scenario.changes, "tenants": tenants}, zone=zone), flood)


def _busy_limit(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    """Much mail for the receiver that has a rate; the relay is reloaded and restarted meanwhile."""
    if "rate" not in scenario.limits or r.random() >= 0.3:
        return scenario
    at_s = r.uniform(0, span_s)
    actions = _burst(FIRST_OF_BURST, 60, at_s, scenario.receivers[0].domain)
    for what in ("reload", "reload", "restart", "reload", "restart"):
        at_s += r.choice([0.3, 20.0, 90.0])
        actions.append(Action(at_s, what, turns=r.randint(0, 60)))
    return _with(scenario, actions)


def _burst(first: int, count: int, at_s: float, domain: str) -> list[Action]:
    """Messages of FLOODING, a hundred a second."""
    sender, found = SENDERS[1], []
    for n in range(count):
        number = first + n
        text = f"Subject: message {number}\r\nFrom: {sender}\r\n\r\nbody {number}\r\n".encode()
        mail = Mail(number, sender, [f"u{number}_0@{domain}"], text, "", again=False, by="smtp")
        found.append(Action(at_s + n * 0.01, "mail", mail))
    return found


RULES: Sequence[Mapping[str, Any]] = (
    {"class": "blocked", "action": "suspend", "for": "20m"},
    {"pattern": "too many messages", "threshold": "2/10m", "action": "suspend", "for": "20m"},
    {"pattern": "greylisted|later", "threshold": "3/10m", "action": "lower_rate", "to": "6/m", "for": "30m"},
    {"pattern": "busy|queue full", "action": "lower_sessions", "to": 1, "for": "30m"},
    {"pattern": "greylisted|later|busy", "action": "retry", "delays": ["90s", "7m"]},
    {"pattern": "greylisted", "action": "not_counted"},
    {"pattern": "later", "action": "bounce"},
    {"class": "blocked", "action": "defer"},
    {"pattern": "queue full|too many", "action": "ignore"},
)  # fmt: skip


def _shaping(r: Random, scenario: Scenario, span_s: float) -> Scenario:
    if r.random() >= 0.2:
        return scenario
    rules = r.sample(RULES, r.randint(1, 4))
    return replace(scenario, rules=[{"name": f"of-seed-{n}", **each} for n, each in enumerate(rules)])


def _some(r: Random, span_s: float, what: str) -> Iterator[Action]:
    """One to three operations, at any time."""
    for _ in range(r.randint(1, 3)):
        yield Action(r.uniform(0, span_s * 1.5 + 60), what)


def _with(scenario: Scenario, actions: Sequence[Action]) -> Scenario:
    return replace(scenario, actions=sorted([*scenario.actions, *actions], key=lambda each: each.at_s))


LATER: Mapping[str, Callable[[Random, Scenario, float], Scenario]] = {
    "http": _by_http,
    "clock": _wrong_clock,
    "reads": _failing_reads,
    "smarthost": _smarthost,
    "signatures": _signed,
    "deployments": _deployments,
    "ends": _many_ends,
    "syncs": _syncs_that_fail,
    "program": _program,
    "flood": _flood,
    "shaping": _shaping,
    "openings": _openings,
    "busy limit": _busy_limit,
}
