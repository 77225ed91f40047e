"""What is submitted, how, and the result for each recipient. No Spark here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zonemta_py.config.zones import Timeouts

ACCEPTED, REFUSED, DEFERRED = "accepted", "refused", "deferred"
PERMANENT = 500  # the least code of a permanent reply: of DEFERRED ones, of a reply to MAIL


@dataclass(frozen=True, slots=True)
class PlannedEnvelope:
    """A message to submit: its submission key, and address and merge fields of each recipient.

    ``send_at_ms``: the relay does not send it before; None: at once.
    """

    key: str
    recipients: Sequence[tuple[str, dict[str, str]]]
    send_at_ms: int | None = None


def envelope_of(row: Mapping[str, Any]) -> PlannedEnvelope:
    """An envelope from a row of ``tables.ENVELOPE`` as Arrow returns it."""
    recipients = [(each["address"], dict(each["fields"] or ())) for each in row["recipients"]]
    return PlannedEnvelope(row["key"], recipients, row.get("send_at_ms"))


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """How to submit.

    ``relays``: each ``host:port``. ``connections``: to each relay. ``patience_s``: how long an
    unreachable relay is waited for, and how long deferred recipients are tried again (``jobs.send_rounds``).
    ``failover``: a key may go to a second relay.
    """

    sender: str
    message: bytes
    relays: tuple[str, ...]
    connections: int = 8
    tls: str = "opportunistic"
    credentials: tuple[str, str] | None = None
    ehlo: str = "localhost"
    patience_s: float = 3600.0
    failover: bool = False
    timeouts: Timeouts = Timeouts()


@dataclass(frozen=True, slots=True)
class SubmissionResult:
    """The result for one recipient: ``state`` is ACCEPTED, REFUSED or DEFERRED.

    ``messages``: the relay's message ids; two when only some recipients of a repeat were new.
    ``repeated``: the relay knew the key. ``age_ms``: how long before ``time_ms`` it had accepted the
    first message; None when it does not say.
    """

    key: str
    relay: str
    address: str
    state: str
    code: int
    reply: str
    messages: tuple[str, ...]
    repeated: bool
    time_ms: int
    age_ms: int | None = None

    @property
    def is_temporary(self) -> bool:
        """Whether the same submission may have another result soon."""
        return self.state == DEFERRED and self.code < PERMANENT
