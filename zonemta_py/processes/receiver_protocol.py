"""The frames between the queue's process and a receiver. ``number`` matches an answer to its request.

The order of the fields and the tags are the wire format.
"""

from collections.abc import Callable
from typing import Any, cast

from zonemta_py.core.codec import Struct, unpacker
from zonemta_py.processes.link import LogLevel, SetTraces, Traced
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.submitters.keys import KeyQuestion, KnownKey
from zonemta_py.queue.submitters.limits import LimitedClient, Use


class Welcome(Struct, frozen=True, array_like=True, tag=1):
    """To a receiver, first: what its message ids are made of. They are greater than ``last_id``.

    ``worker`` is its worker index in them (see ``queue.format.keys.MessageIds``).
    """

    node: str
    boot: int
    last_id: str
    worker: int


class Configure(Struct, frozen=True, array_like=True, tag=2):
    """To a receiver, at the start and at a reload: text and path of the configuration, and what it includes.

    The receiver in ``slot`` of ``receivers`` takes its part of ``max_sessions``. ``sockets``: the number of
    inherited sockets of each listener, in order.
    """

    text: str
    path: str
    included: tuple[tuple[str, str], ...]
    hostname: str
    slot: int
    receivers: int
    sockets: list[int]


class CommitResult(Struct, frozen=True, array_like=True, tag=3):
    """To a receiver: what Write or Accept asked for is on disk; or not, because of ``problem``.

    ``final``: no later write will succeed.
    """

    number: int
    problem: str
    final: bool


class KeyState(Struct, frozen=True, array_like=True, tag=4):
    """To a receiver: the answer to LookUpKey; ``problem``: the record could not be read."""

    number: int
    busy: bool
    known: KnownKey | None
    problem: str


class Stop(Struct, frozen=True, array_like=True, tag=5):
    """To a receiver: accept no connection any more, and finish running transactions. Answered by Drained."""

    grace_s: float


class SpaceLeft(Struct, frozen=True, array_like=True, tag=6):
    """To a receiver, now and then: the space of a store with a limit of its own, in bytes."""

    free: int
    total: int


class SuspendedTenants(Struct, frozen=True, array_like=True, tag=7):
    """To a receiver, at the start and at each change: tenants and users whose mail is not accepted."""

    names: list[str]


class ChargeResult(Struct, frozen=True, array_like=True, tag=8):
    """To a receiver: the answer to ChargeUse; see ``Charge``."""

    number: int
    refusal: str
    closed_ms: int


class VerifiedDomains(Struct, frozen=True, array_like=True, tag=9):
    """To a receiver, at the start and at each change: the verified domains, with their tenants in front."""

    domains: list[tuple[str, str]]


class Ready(Struct, frozen=True, array_like=True, tag=11):
    """From a receiver: it accepts connections."""


class Write(Struct, frozen=True, array_like=True, tag=12):
    """From a receiver: keys and values with a part of a body. Answered by CommitResult."""

    number: int
    message: str
    ops: list[tuple[bytes, bytes]]


class Accept(Struct, frozen=True, array_like=True, tag=13):
    """From a receiver: take responsibility for a message. Answered by CommitResult.

    ``last`` is the chunk of its body that is not written yet; the other fields describe the whole body.
    """

    number: int
    message: str
    new: NewMessage
    chunks: int
    size: int
    crc: int
    last: bytes


class Abort(Struct, frozen=True, array_like=True, tag=14):
    """From a receiver: the body will not be completed."""

    message: str


class RecordEvent(Struct, frozen=True, array_like=True, tag=15):
    """From a receiver: an event for the event log, encoded as there."""

    event: bytes


class LookUpKey(Struct, frozen=True, array_like=True, tag=16):
    """From a receiver: what was accepted under a submission key? Answered by KeyState. ``verb``: see ``KeysClient``."""

    number: int
    verb: str
    question: KeyQuestion


class ReleaseKey(Struct, frozen=True, array_like=True, tag=17):
    """From a receiver: a key that it acquired is free again."""

    digest: str


class ChargeUse(Struct, frozen=True, array_like=True, tag=19):
    """From a receiver: count what ``client`` submits unless it exceeds a limit. Answered by ChargeResult."""

    number: int
    client: LimitedClient
    use: Use


class OpenSessions(Struct, frozen=True, array_like=True, tag=20):
    """From a receiver, when their number has changed, now and then: how many sessions are open."""

    count: int


class WrongPassword(Struct, frozen=True, array_like=True, tag=23):
    """From a receiver, and to all others: a wrong password came from ``network``."""

    network: str


class LoggedIn(Struct, frozen=True, array_like=True, tag=24):
    """From a receiver, and to all others: networks, and users who have logged in from them. At the start: all lately."""

    logins: list[tuple[str, str]]


class CountSession(Struct, frozen=True, array_like=True, tag=25):
    """From a receiver: count a session of ``client`` unless there are too many. Answered by ChargeResult."""

    number: int
    client: LimitedClient


class UncountSession(Struct, frozen=True, array_like=True, tag=26):
    """From a receiver: the session of CountSession has ended; without effect if it was refused."""

    number: int


class Drained(Struct, frozen=True, array_like=True, tag=18):
    """From a receiver: its last session has ended. The answer to Stop."""


Frame = (
    Welcome | Configure | CommitResult | KeyState | Stop | SpaceLeft | SuspendedTenants | ChargeResult
    | VerifiedDomains | WrongPassword | LoggedIn | CountSession | UncountSession
    | Ready | Write | Accept | Abort | RecordEvent | LookUpKey | ReleaseKey | ChargeUse | Drained | OpenSessions | LogLevel | SetTraces | Traced
)  # fmt: skip

decode: Callable[[bytes | memoryview], Frame] = unpacker(cast(Any, Frame))  # a union is not a type
