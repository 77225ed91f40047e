"""The control socket: JSON lines over a Unix socket in the queue directory, for its owner only.

A request is one line, ``{"operation": …, "arguments": {…}}``. The answer is one line per row, then
``{"end": true}`` or ``{"error": …}``. The socket is addressed through the descriptor of the directory,
because the path of a Unix socket is limited to 107 bytes.
"""

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any

from zonemta_py.admin.control_client import SOCKET_NAME, short_path
from zonemta_py.admin.operation import Operations
from zonemta_py.admin.registry import execute, operation_of, parse_request
from zonemta_py.admin.requests import Request
from zonemta_py.core.codec import Struct, from_json, from_plain, to_json
from zonemta_py.core.errors import LocalError, UnknownName

log = logging.getLogger(__name__)


REQUEST_MAX_BYTES = 65_536


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    """A request as it is sent."""

    operation: str
    arguments: dict[str, Any] | None = None


class ControlServer:
    """Executes the requests of operators of this relay."""

    def __init__(self, directory: Path, operations: Operations) -> None:
        self._directory = directory
        self._operations = operations
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. Replaces the socket of a relay that was killed: the lock of the queue excludes another."""
        path = self._directory / SOCKET_NAME
        path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.fchmod(sock.fileno(), 0o600)  # before there is a name
        with short_path(self._directory) as short:
            sock.bind(short)
        self._server = await asyncio.start_unix_server(self._accept, sock=sock, limit=REQUEST_MAX_BYTES)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has disconnected, or the relay stops
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leaving: asyncio.Task[None] | None = None
        try:
            request = await _read_request(reader)
            if operation_of(request).watchers is not None:
                task = asyncio.current_task()
                assert task is not None
                leaving = asyncio.create_task(_cancel_at_eof(reader, task))
            async for row in execute(self._operations, request):
                writer.write(to_json(row) + b"\n")
                await writer.drain()
            writer.write(b'{"end":true}\n')
        except LocalError as exc:
            unknown = {"unknown_name": True} if isinstance(exc, UnknownName) else {}
            writer.write(to_json({"error": str(exc), **unknown}) + b"\n")
        except ConnectionError:
            raise
        except Exception as exc:
            log.exception("an operation failed")
            writer.write(to_json({"error": f"internal error: {exc!r}; see the log"}) + b"\n")
        finally:
            if leaving is not None:
                leaving.cancel()
        await writer.drain()

    async def close(self) -> None:
        """Stop listening, and cancel the requests under way."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        try:
            (self._directory / SOCKET_NAME).unlink(missing_ok=True)
        except OSError as exc:
            log.warning("%s is not removed: %s", self._directory / SOCKET_NAME, exc)


async def _cancel_at_eof(reader: asyncio.StreamReader, task: "asyncio.Task[None]") -> None:
    """Cancel ``task`` when its client leaves: `tail` may have no row to write, by which it would notice."""
    while await reader.read(1024):
        pass
    task.cancel()


async def _read_request(reader: asyncio.StreamReader) -> Request:
    """The next request. Raises LocalError when the line is not one, ConnectionError without a line."""
    try:
        text = await reader.readline()
    except ValueError as exc:
        raise LocalError(f"the request is longer than {REQUEST_MAX_BYTES} bytes") from exc
    if not text:
        raise ConnectionError("the client sent no request")
    try:
        line = from_plain(from_json(text), _Line)
    except ValueError as exc:
        raise LocalError(f"not a request: {exc}") from exc
    return parse_request(line.operation, line.arguments or {})
