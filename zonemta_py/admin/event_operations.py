"""The operations on events: what has happened, and what happens now."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from zonemta_py.admin.event_stream import EventStream
from zonemta_py.admin.requests import HistoryRequest, Row, TailRequest
from zonemta_py.core.codec import from_json
from zonemta_py.core.errors import LocalError
from zonemta_py.events.history import in_lines, make_query
from zonemta_py.queue.format.keys import OUTBOX, end_of
from zonemta_py.queue.queue import Queue

LINE_MAX = 1 << 20  # of an event with many recipients


class EventOperations:
    """A part of ``Operations``. ``directory``: of the event log. ``stream`` None: no relay is running."""

    def __init__(self, queue: Queue, directory: Path | None, stream: EventStream | None) -> None:
        self._queue = queue
        self._directory = directory
        self._stream = stream

    async def history(self, request: HistoryRequest) -> AsyncIterator[Row]:
        """A row for each event, in the order of their time. Raises LocalError."""
        if self._directory is None:
            raise LocalError("there is no event log")
        in_outbox = self._in_outbox(request)
        found = await self._in_log(self._directory, request)
        seen = {(row["node"], row["seq"], row["position"]) for row in found}
        found += [row for row in in_outbox if (row["node"], row["seq"], row["position"]) not in seen]
        if request.tenant is not None:
            found = [row for row in found if row.get("tenant") == request.tenant]
        for row in found[-request.limit :]:
            yield row

    def _in_outbox(self, request: HistoryRequest) -> list[Row]:
        """Events that are not in the event log yet."""
        query = make_query(request.key, request.since_ms)
        rows = self._queue.store.scan(OUTBOX, end_of(OUTBOX))
        return [record for _, lines in rows for record in in_lines(lines, query)]

    async def _in_log(self, directory: Path, request: HistoryRequest) -> list[Row]:
        """Searched by another process: this one has mail to send."""
        arguments = (str(directory), request.key, str(request.since_ms), str(request.limit))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "zonemta_py.events.history", *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, limit=LINE_MAX,
        )  # fmt: skip
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise LocalError("the event log could not be searched; see the log of the relay")
        return [from_json(line) for line in output.splitlines()]

    async def tail(self, request: TailRequest) -> AsyncIterator[Row]:
        """A row for each event from now on, until the client goes. Raises LocalError."""
        if self._stream is None:
            raise LocalError("no relay is running")
        async for record in self._stream.watch():
            if "missed" in record or request.wants(record):
                yield record
