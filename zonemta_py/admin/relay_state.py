"""The operations on the relay itself: addresses that do not answer, configuration, logs, the check and the audit of the queue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

from zonemta_py.admin.operation import Answer, Operations, operation
from zonemta_py.admin.requests import (
    AuditRequest,
    CheckRequest,
    ClassifyRequest,
    LoginRequest,
    LogLevelRequest,
    ReloadRequest,
    Row,
    StatsRequest,
    UnreachableClearRequest,
    UnreachableRequest,
)
from zonemta_py.admin.tokens import Role
from zonemta_py.admin.views import SLICE_ROWS
from zonemta_py.core.clock import monotonic_s
from zonemta_py.core.codec import named
from zonemta_py.core.errors import ConfigError, LocalError
from zonemta_py.queue.census import count_all, differences
from zonemta_py.queue.format.keys import OUTBOX, end_of, parse_outbox
from zonemta_py.queue.upkeep.check import check_bodies, check_queue
from zonemta_py.queue.upkeep.inspect import exported_seq, known_seq, outbox_lines, recipient_rows
from zonemta_py.smtp.reply_class import classified_row

ALL = "all"


class UnreachableRow(Answer, frozen=True):
    """An address whose connections timed out, the last time ``last_s`` seconds ago; none is opened for ``rests_s``."""

    ip: str
    port: int
    source: str
    timeouts: int
    last_s: int
    rests_s: int


@operation("unreachable", rows=(UnreachableRow,))
async def unreachable(on: Operations, request: UnreachableRequest) -> AsyncIterator[Row]:
    """Yield a row for each address. No row when no relay runs."""
    if on.relay.unreachable is not None:
        for row in on.relay.unreachable.rows(monotonic_s()):
            yield row


class ClearedRow(Answer, frozen=True):
    """The number of addresses that were removed."""

    cleared: int


@operation("unreachable/clear")
async def clear_unreachable(
    on: Operations, request: UnreachableClearRequest
) -> AsyncIterator[ClearedRow]:
    """Yield one row. Raises LocalError when no relay runs: only it has the list."""
    if on.relay.unreachable is None:
        raise LocalError("no relay is running")
    ip = None if request.address == ALL else request.address
    yield ClearedRow(on.relay.unreachable.clear(ip))


class LoginRow(Answer, frozen=True):
    """Links to the page, one of which may be used once within ``valid_s`` seconds."""

    urls: list[str]
    valid_s: int


@operation("login", permission=Role.ADMIN, rows=(LoginRow,))
async def login(on: Operations, request: LoginRequest) -> AsyncIterator[Row]:
    """Yield one row. Raises LocalError without a page."""
    if on.relay.new_login is None:
        raise LocalError("no relay with a page is running; see admin.address and admin.page")
    yield on.relay.new_login()


class ReloadedRow(Answer, frozen=True):
    """The keys of the configuration that changed, and what it warns of."""

    changed: list[str]
    warnings: list[str]


class RefusedRow(Answer, frozen=True):
    """A configuration that is not used, and why."""

    refused: str


@operation("reload", permission=Role.ADMIN)
async def reload(on: Operations, request: ReloadRequest) -> AsyncIterator[ReloadedRow | RefusedRow]:
    """Yield one row. Raises LocalError when no relay is running."""
    if on.relay.reload is None:
        raise LocalError("no relay is running")
    own = on.relay.status().get("config", "") if on.relay.status is not None else ""
    if request.file and own and not _is_same_file(request.file, own):
        text = f"the relay was started with {own}, not with {request.file}: change that file, or restart with this one"
        yield RefusedRow(text)
        return
    try:
        changed = list(await on.relay.reload())
    except ConfigError as exc:
        yield RefusedRow(str(exc))
    else:
        status = on.relay.status() if on.relay.status is not None else {}
        yield ReloadedRow(changed, status.get("warnings", []))


def _is_same_file(path: str, other: str) -> bool:
    try:
        return Path(path).samefile(other)
    except OSError:
        return path == other


class LogLevelRow(Answer, frozen=True):
    """The level from now on."""

    level: str


@operation("log-level", permission=Role.ADMIN)
async def log_level(on: Operations, request: LogLevelRequest) -> AsyncIterator[LogLevelRow]:
    """Yield one row. Raises LocalError when no relay is running."""
    if on.relay.set_log_level is None:
        raise LocalError("no relay is running")
    on.relay.set_log_level(request.level)
    yield LogLevelRow(request.level)


class ProblemRow(Answer, frozen=True):
    """A problem of the queue."""

    problem: str


class ProblemsRow(Answer, frozen=True):
    """The number of problems; the last row."""

    problems: int


@operation("check")
async def check(on: Operations, request: CheckRequest) -> AsyncIterator[ProblemRow | ProblemsRow]:
    """Yield a row for each problem, and their number."""
    problems = 0
    async for problem in _problems(on):
        problems += 1
        yield ProblemRow(problem)
    yield ProblemsRow(problems)


async def _problems(on: Operations) -> AsyncIterator[str]:
    store = on.queue.store
    async for problem in _wrong_counts(on):
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


async def _wrong_counts(on: Operations) -> AsyncIterator[str]:
    """Differences between the census of a running relay and the keys, as texts."""
    queue = on.queue
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


class AuditRow(Answer, frozen=True):
    """The event log of a moment: ``seq`` is the number of its last group of events, ``exported`` of the last that it must have.

    The queue is older than a log with a number above ``older_than``.
    """

    seq: int
    exported: int
    older_than: int
    node: str


class AuditEventsRow(Answer, frozen=True):
    """JSON lines of events that are not in the event log yet."""

    events: str


class AuditRecipientsRow(Answer, frozen=True):
    """Recipients, each as [message, index, zone]."""

    recipients: list[list[str | int]]


@operation("audit")
async def audit(
    on: Operations, request: AuditRequest
) -> AsyncIterator[AuditRow | AuditEventsRow | AuditRecipientsRow]:
    """Yield one ``AuditRow``, then the events and the recipients of that moment."""
    events: list[str] = []
    with on.queue.store.frozen() as view:
        last = on.queue.commits.written_seq
        exported, known = exported_seq(view), known_seq(view)
        last = max([last, *map(parse_outbox, view.keys(OUTBOX, end_of(OUTBOX)))])
        events += (lines.decode() for lines in outbox_lines(view))
        recipients = [[r["message"], r["index"], r["zone"]] for r in recipient_rows(view)]
    yield AuditRow(last, exported, known, on.queue.node)
    for lines in events:
        yield AuditEventsRow(lines)
    for at in range(0, len(recipients), SLICE_ROWS):
        yield AuditRecipientsRow(recipients[at : at + SLICE_ROWS])


class StatsRow(Answer, frozen=True):
    """Counters since the start. ``writable``: the queue can be written. ``scanning``: mail of before the start is being read."""

    fsyncs: int
    transitions: int
    compactions: int
    writable: bool
    scanning: int


@operation("stats")
async def stats(on: Operations, request: StatsRequest) -> AsyncIterator[StatsRow]:
    """Yield one row."""
    commits = on.queue.commits
    yield StatsRow(
        fsyncs=commits.groups,
        transitions=commits.batches,
        compactions=on.queue.cleanup.compactions,
        writable=commits.failure is None,
        scanning=on.queue.scanning,
    )


class ClassifyRow(Answer, frozen=True, kw_only=True):
    """The class of a reply, its names in KumoMTA and PowerMTA, and the rule by its file and line (empty and 0: none matches).

    ``phases``: without a phase in the request, those in which the reply has another class, with that.
    """

    reply_class: str = named("class")
    kumomta: str
    powermta: str
    code: int
    status: str
    text: str
    file: str
    line: int
    phases: dict[str, str]


@operation("classify", in_body=True, rows=(ClassifyRow,))
async def classify(on: Operations, request: ClassifyRequest) -> AsyncIterator[Row]:
    """Yield one row. Raises LocalError for a text that is no reply."""
    try:
        yield classified_row(on.queue.classifier, request.text, request.phase)
    except ValueError as exc:
        raise LocalError(str(exc)) from exc
