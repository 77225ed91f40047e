"""The interface of the relay to its operators: what the operations read and change of a relay that runs.

The relay hands a ``RunningRelay`` to ``Operations`` when it starts; a command on a queue whose relay is down makes one with the parts
that do not need it. A part that is None belongs to a relay that is down: the operation that asks for it raises LocalError. Example:
``RunningRelay(zones=delivery.zones, status=relay.status)``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from zonemta_py.core.model import USUAL_KEY, PoolKey
from zonemta_py.egress.paths import Constraint
from zonemta_py.events.observers import EventStream
from zonemta_py.schedule.unreachable import UnreachableHosts


class SuspendedView(Protocol):
    """The part of a running zone that says what an operator has suspended there."""

    def stopped(self) -> Collection[str]:
        """The destinations whose mail waits for the end of what an operator has suspended."""

    def provider(self, destination: str) -> str:
        """The provider to which mail for ``destination`` goes; empty while that is not known, and where there is none."""


class ZoneView(SuspendedView, Protocol):
    """A running zone, as an operator sees it."""

    @property
    def sessions(self) -> int:
        """The number of sessions that its workers have."""

    def why(self, destination: str, pool: PoolKey = USUAL_KEY) -> Constraint | None:
        """The constraint for which mail for ``destination`` from ``pool`` waits; None: it has its turn next, or is being sent."""

    def probe(self, destination: str | None) -> None:
        """Try an unreachable destination now; None: every one."""


class EgressView(Protocol):
    """The limits of sending, as an operator sees and changes them: of a running relay, or of a queue whose relay is down.

    ``delivery.egress_operator`` implements it. All raise LocalError for what is not there.
    """

    def names(self, kind: str) -> Collection[str]:
        """The zones, providers or addresses (``kind``) that there are."""

    def smarthost_zones(self) -> list[str]:
        """The zones whose mail goes to a smarthost, whatever its domain."""

    def changed(self) -> None:
        """Something was suspended or resumed."""

    def rows(self, provider: str, address: str, most: int) -> list[dict[str, Any]]:
        """Rows of what is sent from each address to each provider, and its limits; only of these, if not empty; at most ``most``."""

    def warmups(self) -> list[dict[str, Any]]:
        """A row for each warm-up: how far it is."""

    async def pause_warmup(self, address: str, provider: str, *, paused: bool) -> list[dict[str, Any]]:
        """Pause or continue the schedules of ``address``, or that for ``provider``; returns their rows."""

    async def end_pace(self, provider: str, address: str) -> dict[str, Any]:
        """Forget the pace of an address at a provider; returns what it was."""

    async def end_reroute(self, provider: str, pool: str) -> dict[str, Any]:
        """Let the mail of ``pool`` to a provider leave from it again; returns from where it left."""


@dataclass(frozen=True, slots=True)
class RunningRelay:
    """A running relay; the defaults are those of one that is down.

    ``reload`` reads its configuration again and returns the keys that changed. ``verify`` looks up the domains of a tenant.
    ``events`` is the directory of the event log, ``stream`` has what is written to it. ``trace`` yields the lines of dialogues.
    ``new_login`` makes links to the page, with ``valid_s``. ``tenants``: those of the configuration; it, ``events`` and
    ``egress`` are there when the relay is down, too.
    """

    zones: Mapping[str, ZoneView] = field(default_factory=dict)
    unreachable: UnreachableHosts | None = None
    reload: Callable[[], Awaitable[Sequence[str]]] | None = None
    verify: Callable[[str], Awaitable[None]] | None = None
    events: Path | None = None
    stream: EventStream | None = None
    status: Callable[[], dict[str, Any]] | None = None
    set_log_level: Callable[[str], None] | None = None
    trace: Callable[[str], AsyncIterator[dict[str, Any]]] | None = None
    new_login: Callable[[], dict[str, Any]] | None = None
    tenants: Callable[[], Collection[str]] | None = None
    egress: EgressView | None = None


DOWN = RunningRelay()
