"""The operations on a queue, for the control socket and the commands (see ``operation_table``).

An operation is an async generator of plain rows. It raises LocalError when it fails, and lets other tasks run
between slices of its work.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from zonemta_py.admin.depths import Depths
from zonemta_py.admin.egress import EgressOperations
from zonemta_py.admin.events import EventOperations
from zonemta_py.admin.mail import MailOperations
from zonemta_py.admin.reasons import RunningRelay, SuspendedMail
from zonemta_py.admin.requests import (
    AuditRequest,
    BodyRequest,
    BounceRequest,
    ChangeRequest,
    CheckRequest,
    ClassifyRequest,
    DeleteRequest,
    DestinationsRequest,
    FlushRequest,
    HistoryRequest,
    HoldRequest,
    ListRequest,
    LoginRequest,
    LogLevelRequest,
    MailRequest,
    RatesRequest,
    ReleaseRequest,
    ReloadRequest,
    Request,
    ResumeRequest,
    Row,
    ShapeRequest,
    ShapingEndRequest,
    ShapingRequest,
    ShowRequest,
    StateRequest,
    StatsRequest,
    StatusRequest,
    SummaryRequest,
    SuspendedRequest,
    SuspendRequest,
    TailRequest,
    TenantsRequest,
    TraceRequest,
    UnreachableClearRequest,
    UnreachableRequest,
    UsageRequest,
    VerifyRequest,
    WarmupContinueRequest,
    WarmupPauseRequest,
    WarmupRequest,
    WhyRequest,
)
from zonemta_py.admin.suspensions import SuspensionOperations, TenantOperations
from zonemta_py.admin.tokens import Role
from zonemta_py.admin.views import KINDS, SLICE_ROWS, ViewOperations
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.codec import from_plain, replace
from zonemta_py.core.errors import ConfigError, LocalError, NotFound, QueueCorrupt
from zonemta_py.core.model import RENAMED_STATES, STATES
from zonemta_py.events.history import MESSAGE
from zonemta_py.queue.census import count_all, differences
from zonemta_py.queue.format.keys import (
    OUTBOX,
    end_of,
    mark_key,
    parse_outbox,
)
from zonemta_py.queue.format.records import RecipientState
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.check import check_bodies, check_queue
from zonemta_py.queue.upkeep.inspect import (
    exported_seq,
    known_seq,
    message_row,
    outbox_lines,
    recipient_rows,
)
from zonemta_py.queue.upkeep.move import flush
from zonemta_py.smtp.address import AddressError, normalise, normalise_domain
from zonemta_py.smtp.reply_class import classified_row

ALL = "all"
DOWN = RunningRelay()


class Operations(
    ViewOperations,
    MailOperations,
    TenantOperations,
    SuspensionOperations,
    EgressOperations,
    EventOperations,
):
    """The operations on ``queue``, and on the ``relay`` that runs on it."""

    def __init__(self, queue: Queue, relay: RunningRelay = DOWN) -> None:
        ViewOperations.__init__(self, queue, relay)
        MailOperations.__init__(self, queue)
        TenantOperations.__init__(self, queue, relay.verify)
        SuspensionOperations.__init__(self, queue, relay.egress, relay.tenants)
        EgressOperations.__init__(self, relay.egress)
        EventOperations.__init__(self, queue, relay.events, relay.stream)

    async def body(self, request: BodyRequest) -> AsyncIterator[Row]:
        """Rows with ``chunk``. Raises LocalError when there is no such message or it is damaged."""
        self._require(request.message)
        try:
            active = self._queue.acquire_message(request.message)
            try:
                yield _chunk_row(active.meta.header + b"\r\n")
                async for chunk in self._queue.bodies.stream(active):
                    yield _chunk_row(chunk)
                    await asyncio.sleep(0)
            finally:
                self._queue.release_message(active)
        except QueueCorrupt as exc:
            if self._queue.store.get(mark_key(request.message)) is None:
                raise LocalError(
                    f"message {request.message} has left the queue while it was read"
                ) from exc
            raise LocalError(str(exc)) from exc

    async def flush(self, request: FlushRequest) -> AsyncIterator[Row]:
        """One row with ``woken``, recipients, ``tried``, destinations that did not answer, and ``suspended``: recipients there, now
        due, that wait for the end of what an operator has suspended. Raises LocalError when there is no such message.
        """
        if request.message is not None:
            self._require(request.message)
        places = self._places(request)
        if self._relay.unreachable is not None:  # before mail is ready that would be refused for it
            for destination in {destination for _, destination in places}:
                self._relay.unreachable.clear(destination=destination)
        tried = sum(
            destination in (None, name)
            for zone, destination in places
            for name in self._queue.windows.zone(zone).suspended()
        )
        woken = await flush(self._queue, request.zone, request.domain, request.message)
        for zone, destination in places:
            self._relay.zones[zone].probe(destination)
        yield {"woken": woken, "tried": tried, "suspended": self._suspended_at(places)}

    def _suspended_at(self, places: set[tuple[str, str | None]]) -> int:
        queue = self._queue
        if not queue.suspended:
            return 0
        suspended, count = SuspendedMail(queue.suspended, self._relay.zones), 0
        depths = Depths(queue.census, queue.windows, suspended)
        for zone, destination in places:
            if destination is None:
                count += depths.zone(zone)["suspended"]
            elif suspended.has(zone, destination):
                count += queue.census.destination(zone, destination)[RecipientState.WAITING]
        return count

    def _places(self, request: FlushRequest) -> set[tuple[str, str | None]]:
        """The zones and destinations that are tried; a destination None: all of the zone."""
        destination_of, zones = self._queue.windows.destination_of, self._relay.zones
        if request.message is not None:
            row = message_row(self._queue.store, request.message)
            recipients = row["recipients"] if row is not None else []
            return {
                (each["zone"], destination_of(each["zone"], each["domain"]))
                for each in recipients
                if each["zone"] in zones
                and request.zone in (None, each["zone"])
                and request.domain in (None, each["domain"])
            }
        return {
            (name, destination_of(name, request.domain) if request.domain else None)
            for name in zones
            if request.zone in (None, name)
        }

    async def unreachable(self, request: UnreachableRequest) -> AsyncIterator[Row]:
        """A row for each address. No row when no relay runs."""
        if self._relay.unreachable is not None:
            for row in self._relay.unreachable.rows(monotonic_s()):
                yield row

    async def clear_unreachable(self, request: UnreachableClearRequest) -> AsyncIterator[Row]:
        """One row with ``cleared``, how many were removed. Raises LocalError when no relay runs: only it has the list."""
        if self._relay.unreachable is None:
            raise LocalError("no relay is running")
        ip = None if request.address == ALL else request.address
        yield {"cleared": self._relay.unreachable.clear(ip)}

    async def login(self, request: LoginRequest) -> AsyncIterator[Row]:
        """One row with ``urls``, and ``valid_s`` for which they are. Raises LocalError without a page."""
        if self._relay.new_login is None:
            raise LocalError("no relay with a page is running; see admin.address and admin.page")
        yield self._relay.new_login()

    async def reload(self, request: ReloadRequest) -> AsyncIterator[Row]:
        """One row with ``changed``, keys of the configuration, and ``warnings``; or with ``refused``, why it is not used."""
        if self._relay.reload is None:
            raise LocalError("no relay is running")
        own = self._relay.status().get("config", "") if self._relay.status is not None else ""
        if request.file and own and not _is_same_file(request.file, own):
            text = f"the relay was started with {own}, not with {request.file}: change that file, or restart with this one"
            yield {"refused": text}
            return
        try:
            changed = list(await self._relay.reload())
        except ConfigError as exc:
            yield {"refused": str(exc)}
        else:
            status = self._relay.status() if self._relay.status is not None else {}
            yield {"changed": changed, "warnings": status.get("warnings", [])}

    async def log_level(self, request: LogLevelRequest) -> AsyncIterator[Row]:
        """One row with ``level``. Raises LocalError when no relay is running."""
        if self._relay.set_log_level is None:
            raise LocalError("no relay is running")
        self._relay.set_log_level(request.level)
        yield {"level": request.level}

    async def classify(self, request: ClassifyRequest) -> AsyncIterator[Row]:
        """One row, see ``classified_row``. Raises LocalError for a text that is no reply."""
        try:
            yield classified_row(self._queue.classifier, request.text, request.phase)
        except ValueError as exc:
            raise LocalError(str(exc)) from exc

    async def trace(self, request: TraceRequest) -> AsyncIterator[Row]:
        """A row for each line of a dialogue from now on, until the client goes. Raises LocalError."""
        if self._relay.trace is None:
            raise LocalError("no relay is running")
        if MESSAGE.match(request.target.lower()):
            self._require(request.target.lower())
        async for row in self._relay.trace(request.target):
            yield row

    async def check(self, request: CheckRequest) -> AsyncIterator[Row]:
        """Rows with ``problem``, then one with ``problems``, their number."""
        problems = 0
        async for problem in self._problems():
            problems += 1
            yield {"problem": problem}
        yield {"problems": problems}

    async def _problems(self) -> AsyncIterator[str]:
        store = self._queue.store
        async for problem in self._wrong_counts():
            yield problem
        for problem in check_queue(store, bodies=not store.is_remote()):
            if problem:
                yield problem
            else:
                await asyncio.sleep(0)
        if store.is_remote():
            async for problem in check_bodies(store):
                if problem:
                    yield problem

    async def _wrong_counts(self) -> AsyncIterator[str]:
        """Where the census of a running relay differs from the keys."""
        queue = self._queue
        if not queue.census.is_complete:
            return
        found: list[str] = []
        with ExitStack() as stack:  # no row is sent meanwhile: writes may wait
            frozen = queue.store.frozen()
            view, counts = await queue.commits.between_groups(
                lambda: (stack.enter_context(frozen), queue.census.copy())
            )
            for counted in count_all(view, queue.windows.destination_of):
                if queue.store.has_snapshots():
                    await asyncio.sleep(0)
                if counted is not None:
                    found = list(differences(counts, counted.copy()))
        for problem in found:
            yield problem

    async def audit(self, request: AuditRequest) -> AsyncIterator[Row]:
        """``seq``, ``exported``, ``older_than`` and ``node``, then rows with ``events`` (JSON lines) and with ``recipients``.

        ``seq`` is the number of the last group of events before the snapshot, ``exported`` of the last that
        the event log must have; the queue is older than a log with a number above ``older_than``. A recipient is
        [message, index, zone].
        """
        events: list[Row] = []
        with self._queue.store.frozen() as view:
            last = self._queue.commits.written_seq
            exported, known = exported_seq(view), known_seq(view)
            last = max([last, *map(parse_outbox, view.keys(OUTBOX, end_of(OUTBOX)))])
            events += ({"events": lines.decode()} for lines in outbox_lines(view))
            recipients = [[r["message"], r["index"], r["zone"]] for r in recipient_rows(view)]
        yield {"seq": last, "exported": exported, "older_than": known, "node": self._queue.node}
        for row in events:
            yield row
        for at in range(0, len(recipients), SLICE_ROWS):
            yield {"recipients": recipients[at : at + SLICE_ROWS]}

    async def stats(self, request: StatsRequest) -> AsyncIterator[Row]:
        """One row."""
        commits = self._queue.commits
        yield {
            "fsyncs": commits.groups,
            "transitions": commits.batches,
            "compactions": self._queue.cleanup.compactions,
            "writable": commits.failure is None,
            "scanning": self._queue.scanning,
        }


def _chunk_row(chunk: bytes) -> Row:
    return {"chunk": base64.b64encode(chunk).decode()}


def _is_same_file(path: str, other: str) -> bool:
    try:
        return Path(path).samefile(other)
    except OSError:
        return path == other


# ---- Every operation in one table: its name (that of its command), its request type and its handler.


class Operation(NamedTuple):
    """An entry of the table. ``least``: the role that it needs, if not that of its kind.

    ``in_body``: its arguments hold addresses, which do not belong into a URL.
    ``limit_max``: the largest ``limit`` that it takes, if it takes one; None: any from 1 on.
    """

    name: str
    request: type[Request]
    handler: Callable[[Operations, Any], AsyncIterator[Row]]
    least: Role | None = None
    in_body: bool = False
    limit_max: int | None = None

    @property
    def changes(self) -> bool:
        """Whether it changes something."""
        return self.least is not None or issubclass(self.request, ChangeRequest)

    @property
    def method(self) -> str:
        """Of its HTTP request."""
        return "POST" if self.changes or self.in_body else "GET"

    @property
    def role(self) -> Role:
        """What the token of an HTTP client must be for."""
        return self.least or (Role.OPERATE if self.changes else Role.READ)


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("summary", SummaryRequest, Operations.summary),
        Operation("shape", ShapeRequest, Operations.shape),
        Operation("status", StatusRequest, Operations.status),
        Operation("rates", RatesRequest, Operations.rates),
        Operation("destinations", DestinationsRequest, Operations.destinations),
        Operation("list", ListRequest, Operations.list),
        Operation("show", ShowRequest, Operations.show),
        Operation("why", WhyRequest, Operations.why),
        Operation("body", BodyRequest, Operations.body),
        Operation("state", StateRequest, Operations.state),
        Operation("flush", FlushRequest, Operations.flush),
        Operation("delete", DeleteRequest, Operations.delete),
        Operation("bounce", BounceRequest, Operations.bounce),
        Operation("hold", HoldRequest, Operations.hold),
        Operation("release", ReleaseRequest, Operations.release),
        Operation("tenants", TenantsRequest, Operations.tenants),
        Operation("suspended", SuspendedRequest, Operations.suspended),
        Operation("suspend", SuspendRequest, Operations.suspend),
        Operation("resume", ResumeRequest, Operations.resume),
        Operation("warmup", WarmupRequest, Operations.warmup),
        Operation("warmuppause", WarmupPauseRequest, Operations.pause),
        Operation("warmupcontinue", WarmupContinueRequest, Operations.go_on),
        Operation("shaping", ShapingRequest, Operations.shaping),
        Operation("shapingend", ShapingEndRequest, Operations.end_pace),
        Operation("verify", VerifyRequest, Operations.verify),
        Operation("usage", UsageRequest, Operations.usage),
        Operation("unreachable", UnreachableRequest, Operations.unreachable),
        Operation("unreachableclear", UnreachableClearRequest, Operations.clear_unreachable),
        Operation("login", LoginRequest, Operations.login, Role.ADMIN),
        Operation("reload", ReloadRequest, Operations.reload, Role.ADMIN),
        Operation("loglevel", LogLevelRequest, Operations.log_level, Role.ADMIN),
        Operation("history", HistoryRequest, Operations.history, limit_max=10_000),
        Operation("tail", TailRequest, Operations.tail),
        Operation("trace", TraceRequest, Operations.trace),
        Operation("check", CheckRequest, Operations.check),
        Operation("audit", AuditRequest, Operations.audit),
        Operation("stats", StatsRequest, Operations.stats),
        Operation("classify", ClassifyRequest, Operations.classify, in_body=True),
    )
}
_BY_REQUEST = {operation.request: operation for operation in OPERATIONS.values()}


def run_operation(operations: Operations, request: Request) -> AsyncIterator[Row]:
    """The rows of the answer. They raise LocalError when the operation fails; a wrong argument does at once."""
    operation, request = operation_of(request), _normalised(request)
    limit: int | None = getattr(request, "limit", None)
    if limit is not None and not 1 <= limit <= (operation.limit_max or limit):
        raise LocalError(
            f"limit: expected 1 {f'to {operation.limit_max}' if operation.limit_max else 'or more'}"
        )
    _check_names(operations, request)
    rows: AsyncIterator[Row] = operation.handler(operations, request)
    return rows


_NORMAL = (
    ("domain", normalise_domain),
    ("recipient", normalise),
    ("sender", normalise),
    ("sender_domain", normalise_domain),
)


def _normalised(request: Request) -> Request:
    """``request`` with its domains and addresses as the queue has them, and the present name of a state. Raises LocalError."""
    if isinstance(request, (ListRequest, ShapeRequest)) and request.state in RENAMED_STATES:
        request = replace(request, state=RENAMED_STATES[request.state])
    if not isinstance(request, (ListRequest, FlushRequest, WhyRequest, MailRequest)):
        return request
    if getattr(request, "sender", None) == "<>":
        request = replace(request, sender="")
    for name, normal in _NORMAL:
        value: str | None = getattr(request, name, None)
        if value:
            try:
                request = replace(request, **{name: normal(value)})
            except AddressError as exc:
                raise LocalError(f"{name}: {exc}") from exc
    return request


def _check_names(operations: Operations, request: Request) -> None:
    """Raises LocalError for what no row can have: an empty answer would look as if all were well."""
    if isinstance(request, (ListRequest, ShapeRequest, DestinationsRequest, MailRequest)):
        operations.require_zone(request.zone)
    choices: dict[str, tuple[str, ...]] = {}
    if isinstance(request, (ListRequest, ShapeRequest)):
        choices = {"state": STATES}
    elif isinstance(request, RatesRequest):
        choices = {"kind": KINDS}
    for name, known in choices.items():
        if getattr(request, name) not in (None, *known):
            raise LocalError(f"{name}: expected one of {', '.join(known)}")


def operation_of(request: Request) -> Operation:
    """The operation that executes ``request``."""
    return _BY_REQUEST[type(request)]


def parse_request(name: str, arguments: object) -> Request:
    """The request of operation ``name``. Raises LocalError for an unknown operation or a wrong argument."""
    operation = OPERATIONS.get(name)
    if operation is None:
        raise LocalError(f"unknown operation '{name}'; operations: {', '.join(OPERATIONS)}")
    try:
        return from_plain(arguments, operation.request)
    except ValueError as exc:
        raise LocalError(f"{name}: {exc}") from exc


# ---- What a token of a tenant may ask: what belongs to others does not exist for it.


def restrict(operations: Operations, request: Request, tenant: str) -> Request:
    """``request`` for the mail of ``tenant`` only, if it is not empty. Raises NotFound, PermissionError."""
    if not tenant or isinstance(request, ClassifyRequest):
        return request
    if isinstance(request, (ListRequest, TailRequest, HistoryRequest)):
        return replace(request, tenant=tenant)
    if isinstance(request, MailRequest) and request.message is None and request.has_filter:
        if isinstance(request, ReleaseRequest):
            raise PermissionError("name the message: a scanner may have had some of these held")
        request = replace(request, tenant=tenant)
        return replace(request, by=tenant) if isinstance(request, HoldRequest) else request
    message = getattr(request, "message", None)
    if message is not None:
        if operations.tenant_of(message) != tenant:
            raise NotFound(f"no message {message} in the queue")
        if isinstance(request, FlushRequest):
            raise PermissionError("a flush tries destinations of all tenants")
        if isinstance(request, ReleaseRequest) and operations.is_quarantined(message):
            raise PermissionError("the scanner had this message held: the operator decides")
        if isinstance(request, ReleaseRequest) and not operations.may_release(message, tenant):
            raise PermissionError(
                "this message is not held by a token of the tenant: the operator decides"
            )
        return (
            replace(request, by=tenant)
            if isinstance(request, (HoldRequest, ReleaseRequest))
            else request
        )
    if getattr(request, "tenant", None) == tenant and not isinstance(request, ChangeRequest):
        return request
    raise PermissionError(f"this token is for the mail of the tenant '{tenant}' only")
