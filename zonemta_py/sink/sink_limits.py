"""The limits of a mailbox provider that a sink plays, from the key ``providers`` of a script.

providers:
  - name: bigmail
    local: [127.0.0.21, 127.0.0.22]   # the addresses of its hosts; without it: all that no other provider has
    mx: [mx1.bigmail.example]         # the names of its hosts, for --dns; default: mx.NAME.example
    domains: [a.example, b.example]   # whose mail it receives, for --dns
    sessions: 20                      # open at the same time, of all clients
    sessions_per_address: 5           # of one client address
    messages_per_session: 50          # then the next MAIL is refused, and the session closed
    rate: [10/s, 1000/h]              # messages accepted from a client address; of several rates all hold
    rate_total: 100/s                 # messages accepted from all clients
    connect_rate: 60/m                # sessions opened by a client address
    greylist: 30s                     # since the first try of client address, sender and recipient
    block: {after: 200 messages within 1m, for: 10m, at: mail, reply: 550 5.7.1 your address is blocked}
    slack: 5ms                        # periods are shorter by this; a session too many waits this long for a free place
    replies: {rate: 421 4.7.28 slow down}   # other replies, by the name of the limit
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import ip_address

from zonemta_py.config.reader import Reader
from zonemta_py.config.values import MessagesWithin, Rate, Seconds, Word, choice, number


class LimitName(StrEnum):
    """The name of an exceeded limit. GREYLIST and BLOCKED refuse too, but no client can know of them before."""

    SESSIONS = "sessions"
    SESSIONS_PER_ADDRESS = "sessions_per_address"
    MESSAGES_PER_SESSION = "messages_per_session"
    RATE = "rate"
    RATE_TOTAL = "rate_total"
    CONNECT_RATE = "connect_rate"
    BLOCK = "block"  # the message that starts a block
    GREYLIST = "greylist"
    BLOCKED = "blocked"


REPLIES: Mapping[LimitName, str] = {
    LimitName.SESSIONS: "421 4.7.0 too many connections",
    LimitName.SESSIONS_PER_ADDRESS: "421 4.7.0 too many concurrent connections from your IP",
    LimitName.MESSAGES_PER_SESSION: "421 4.7.0 too many messages in this session",
    LimitName.RATE: "450 4.7.28 rate limit of your IP exceeded",
    LimitName.RATE_TOTAL: "450 4.7.28 rate limit exceeded",
    LimitName.CONNECT_RATE: "421 4.7.0 too many connections from your IP in this time",
    LimitName.GREYLIST: "451 4.7.1 Greylisted",
}  # a block has its own
_REPLY = re.compile(r"[45]\d\d [^\r\n]+\Z")


@dataclass(frozen=True, slots=True)
class SinkBlock:
    """Refuses a client address, from the step ``at`` of a dialogue on. ``after``: None if only a test starts it."""

    after: MessagesWithin | None = None
    for_: Seconds = Seconds(600.0)
    at: str = choice("mail", "connect", "rcpt", "dot")
    reply: str = "550 5.7.1 mail from your IP is blocked"


@dataclass(frozen=True, slots=True)
class SinkLimits:
    """The limits of a provider; None or () is no limit.

    ``mx`` are the names of its hosts and ``domains`` those whose mail it receives, for the name server of the sink.
    """

    name: str = ""
    local: tuple[Word, ...] = ()
    mx: tuple[Word, ...] = ()
    domains: tuple[Word, ...] = ()
    sessions: int | None = number(None)
    sessions_per_address: int | None = number(None)
    messages_per_session: int | None = number(None)
    rate: tuple[Rate, ...] = ()
    rate_total: tuple[Rate, ...] = ()
    connect_rate: tuple[Rate, ...] = ()
    greylist: Seconds | None = None
    block: SinkBlock = SinkBlock()
    slack: Seconds = Seconds(0.0)
    replies: dict[str, str] = field(default_factory=dict)

    def reply(self, limit: LimitName) -> str:
        if limit in (LimitName.BLOCK, LimitName.BLOCKED):
            return self.block.reply
        return self.replies.get(limit, REPLIES[limit])


def name_records(providers: Sequence[SinkLimits]) -> dict[str, dict[str, list[str]]]:
    """The DNS records of the domains of ``providers``: MX, and the addresses of each host."""
    records: dict[str, dict[str, list[str]]] = {}
    for each in providers:
        hosts = [host.lower() for host in each.mx] or [f"mx.{each.name}.example"]
        for host in hosts:
            kinds = records.setdefault(host, {})
            for address in each.local or ("127.0.0.1",):
                kinds.setdefault("AAAA" if ":" in address else "A", []).append(address)
        for domain in each.domains:
            records[domain.lower()] = {"MX": [f"10 {host}." for host in hosts]}
    return records


def check_limits(reader: Reader, providers: Sequence[SinkLimits]) -> tuple[SinkLimits, ...]:
    """``providers`` with addresses in the usual form. Raises ConfigError, which names file, line and key."""
    names: set[str] = set()
    addresses: set[str] = set()
    checked = []
    for index, limits in enumerate(providers):
        key = f"providers[{index}]"
        if not limits.name:
            reader.complain(key, "a provider needs a name")
        if limits.name in names:
            reader.complain(f"{key}.name", f"two providers are named '{limits.name}'")
        names.add(limits.name)
        _check(reader, key, limits)
        checked.append(_with_addresses(reader, key, limits, addresses))
    return tuple(checked)


def _with_addresses(reader: Reader, key: str, limits: SinkLimits, used: set[str]) -> SinkLimits:
    """``limits`` with its addresses in the usual form, which are added to ``used``."""
    local: list[Word] = []
    for index, text in enumerate(limits.local):
        try:
            local.append(Word(str(ip_address(text))))
        except ValueError:
            reader.complain(f"{key}.local[{index}]", f"found '{text}', expected an IP address")
    for address in local or [Word("")]:
        if address in used:
            taken = f"{address} belongs to an earlier provider"
            reader.complain(f"{key}.local", taken if address else "only one provider may lack addresses")
        used.add(address)
    return replace(limits, local=tuple(local))


def _check(reader: Reader, key: str, limits: SinkLimits) -> None:
    for name in limits.replies:
        if name not in REPLIES:
            reader.complain(f"{key}.replies.{name}", f"no such limit, allowed: {', '.join(REPLIES)}")
    texts = {f"{key}.replies.{name}": text for name, text in limits.replies.items()}
    for where, text in {**texts, f"{key}.block.reply": limits.block.reply}.items():
        if not _REPLY.match(text):
            reader.complain(where, f"found '{text}', expected a refusal such as '451 4.7.1 try later'")
    periods = [*limits.rate, *limits.rate_total, *limits.connect_rate]
    shortest_s = min((rate.per_s for rate in periods), default=None)
    if shortest_s is not None and limits.slack >= shortest_s:
        reader.complain(f"{key}.slack", "must be shorter than the period of every rate")
