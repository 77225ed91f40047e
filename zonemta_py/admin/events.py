"""The operations on events: what has happened, and what happens now."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

from zonemta_py.admin.event_stream import EventStream
from zonemta_py.admin.requests import HistoryRequest, Row, TailRequest
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError, UnknownName
from zonemta_py.events.history import MESSAGES_MAX, Query, in_lines, lower, make_queries
from zonemta_py.events.schema import EVENT_NAMES
from zonemta_py.queue.queue import Queue
from zonemta_py.queue.upkeep.inspect import exported_seq, outbox_lines

SEARCHES_MAX = 2  # at the same time
LINES_AT_ONCE = 500
INCOMPLETE = "a part of the event log is damaged or missing: there may be more events"


class EventOperations:
    """A part of ``Operations``. ``directory``: of the event log. ``stream`` None: no relay is running."""

    def __init__(self, queue: Queue, directory: Path | None, stream: EventStream | None) -> None:
        self._queue = queue
        self._directory = directory
        self._stream = stream
        self._searches = asyncio.Semaphore(SEARCHES_MAX)
        self._searches_of_tenants = asyncio.Semaphore(SEARCHES_MAX - 1)  # the others are for operators

    async def history(self, request: HistoryRequest) -> AsyncIterator[Row]:
        """A row for each event, in the order of their time; then one with ``problem`` for each part of the log that is missing.

        A tenant gets no names of files. Raises LocalError.
        """
        if self._directory is None:
            raise LocalError("there is no event log")
        make_queries(request.key, request.since_ms)  # raises for what nothing can be found by
        outbox = list(outbox_lines(self._queue.store))  # before the log
        async with AsyncExitStack() as turn:
            if request.tenant is not None:
                await turn.enter_async_context(self._searches_of_tenants)
            await turn.enter_async_context(self._searches)
            output = await self._search(self._directory, request)
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

    async def _search(self, directory: Path, request: HistoryRequest) -> bytes:
        """The events in the log as JSON lines, found by another process: this one has mail to send."""
        exported = exported_seq(self._queue.store)
        arguments = [str(directory), request.key, str(request.since_ms), str(request.limit)]
        arguments += [self._queue.node, str(exported)]
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

    async def tail(self, request: TailRequest) -> AsyncIterator[Row]:
        """A row for each event from now on, until the client goes. Raises LocalError."""
        if self._stream is None:
            raise LocalError("no relay is running")
        if request.event not in (None, *EVENT_NAMES):
            raise UnknownName(f"event: expected one of {', '.join(EVENT_NAMES)}")
        async for record in self._stream.watch():
            if "missed" in record or request.wants(record):
                yield record


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
