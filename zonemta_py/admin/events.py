"""The operations on events: what has happened, and what happens now."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar

from zonemta_py.admin.messages import require_message
from zonemta_py.admin.operation import Answer, Operations, Watchers, operation
from zonemta_py.admin.requests import HistoryRequest, Row, TailRequest, TraceRequest
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError, UnknownName
from zonemta_py.events.history import MESSAGE, MESSAGES_MAX, Query, in_lines, lower, make_queries
from zonemta_py.events.schema import EVENT_NAMES
from zonemta_py.queue.upkeep.inspect import exported_seq, outbox_lines

LINES_AT_ONCE = 500
INCOMPLETE = "a part of the event log is damaged or missing: there may be more events"


class EventRow(Answer, frozen=True):
    """An event, with the fields of its kind; see ``docs/events.md``.

    ``node``, ``seq`` and ``position`` identify it.
    """

    open_fields: ClassVar[bool] = True
    event: str
    time_ms: int
    node: str
    seq: int
    position: int


class EventProblemRow(Answer, frozen=True):
    """A part of the event log that is damaged or missing."""

    problem: str


class MissedRow(Answer, frozen=True):
    """The number of rows that a slow client has missed here."""

    missed: int


class TraceRow(Answer, frozen=True):
    """A line of a dialogue. ``side``: in (a client's) or out (with a peer). ``speaker``: C (the client), S (the server), or empty.

    ``session`` is unique in a relay.
    """

    time_ms: int
    side: str
    session: str
    peer: str
    speaker: str
    text: str


@operation("history", limit_max=10_000, rows=(EventRow, EventProblemRow))
async def history(on: Operations, request: HistoryRequest) -> AsyncIterator[Row]:
    """Yield a row for each event, in the order of their time; then one for each part of the log that is missing.

    A tenant gets no names of files. Raises LocalError.
    """
    if on.relay.events is None:
        raise LocalError("there is no event log")
    make_queries(request.key, request.since_ms)  # raises for what nothing can be found by
    outbox = list(outbox_lines(on.queue.store))  # before the log
    async with AsyncExitStack() as turn:
        if request.tenant is not None:
            await turn.enter_async_context(on.searches_of_tenants)
        await turn.enter_async_context(on.searches)
        output = await _search(on, on.relay.events, request)
    found: list[Row] = []
    problems: list[Row] = []
    for number, line in enumerate(output.splitlines()):
        row = from_json(line)
        (problems if "problem" in row else found).append(row)
        if number % LINES_AT_ONCE == 0:
            await asyncio.sleep(0)
    for row in [*found, *_in_outbox(outbox, request, found)][-request.limit :]:
        yield row
    for row in problems if request.tenant is None else problems and [{"problem": INCOMPLETE}]:
        yield row


async def _search(on: Operations, directory: Path, request: HistoryRequest) -> bytes:
    """The events in the log as JSON lines, found by another process: this one has mail to send."""
    exported = exported_seq(on.queue.store)
    arguments = [str(directory), request.key, str(request.since_ms), str(request.limit)]
    arguments += [on.queue.node, str(exported)]
    arguments += [request.tenant] if request.tenant is not None else []
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "zonemta_py.events.history", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a signal to the group of the relay is for the relay
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise LocalError("the event log could not be searched; see the log of the relay")
    return output


@operation("tail", rows=(EventRow, MissedRow), watchers=Watchers(15, reserved=3))
async def tail(on: Operations, request: TailRequest) -> AsyncIterator[Row]:
    """Yield a row for each event from now on, until the client goes. Raises LocalError."""
    if on.relay.stream is None:
        raise LocalError("no relay is running")
    if request.event not in (None, *EVENT_NAMES):
        raise UnknownName(f"event: expected one of {', '.join(EVENT_NAMES)}")
    async for record in on.relay.stream.watch():
        if "missed" in record or request.wants(record):
            yield record


@operation("trace", rows=(TraceRow, MissedRow), watchers=Watchers(4, reserved=1))
async def trace(on: Operations, request: TraceRequest) -> AsyncIterator[Row]:
    """Yield a row for each line of a dialogue from now on, until the client goes. Raises LocalError."""
    if on.relay.trace is None:
        raise LocalError("no relay is running")
    if MESSAGE.match(request.target.lower()):
        require_message(on.queue, request.target.lower())
    async for row in on.relay.trace(request.target):
        yield row


def _in_outbox(outbox: list[bytes], request: HistoryRequest, found: list[Row]) -> list[Row]:
    """Events that are not in the event log yet: those that match, and all of messages whose Message-ID does."""
    if not outbox:
        return []
    queries = make_queries(request.key, request.since_ms)
    named = {query.value for query in queries if query.field == "message_id"}
    matching = _matching(outbox, queries)
    of_name = {
        row["message"]
        for row in (*found, *matching)
        if lower(row.get("message_id")) in named and request.tenant in (None, row.get("tenant"))
    }
    matching += _of_messages(outbox, set(sorted(of_name)[-MESSAGES_MAX:]), request.since_ms)
    seen = {_identity(row) for row in found}
    rows = {_identity(row): row for row in matching if request.tenant in (None, row.get("tenant"))}
    return [row for identity, row in sorted(rows.items()) if identity not in seen]


def _matching(outbox: list[bytes], queries: list[Query]) -> list[Row]:
    return [row for query in queries for lines in outbox for row in in_lines(lines, query)]


def _of_messages(outbox: list[bytes], messages: set[str], since_ms: int) -> list[Row]:
    if not messages:
        return []
    rows = (from_json(line) for lines in outbox for line in lines.splitlines())
    return [row for row in rows if row.get("message") in messages and row["time_ms"] >= since_ms]


def _identity(row: Row) -> tuple[str, int, int]:
    return row["node"], row["seq"], row["position"]
