"""The control socket: JSON lines over a Unix socket in the queue directory, for its owner only.

A request is one line, ``{"operation": …, "arguments": {…}}``. The answer is one line per row, then
``{"end": true}`` or ``{"error": …}``. The socket is addressed through the descriptor of the directory,
because the path of a Unix socket is limited to 107 bytes.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zonemta_py.admin.operation_table import operation_of, parse_request, run_operation
from zonemta_py.admin.operations import Operations
from zonemta_py.admin.requests import Request, Row
from zonemta_py.core.codec import Struct, from_json, from_plain, to_json
from zonemta_py.core.errors import LocalError

SOCKET_NAME = "control.sock"
REQUEST_MAX_BYTES = 65_536

log = logging.getLogger(__name__)


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    """A request as it is sent."""

    operation: str
    arguments: dict[str, Any] | None = None


@contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET_NAME}"
    finally:
        os.close(handle)


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
        with _short_path(self._directory) as short:
            sock.bind(short)
        path.chmod(0o600)
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
        try:
            async for row in run_operation(self._operations, await _read_request(reader)):
                writer.write(to_json(row) + b"\n")
                await writer.drain()
            writer.write(b'{"end":true}\n')
        except LocalError as exc:
            writer.write(to_json({"error": str(exc)}) + b"\n")
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


def is_running(directory: Path) -> bool:
    """Whether a relay answers at the control socket of a queue."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            with _short_path(directory) as short:
                sock.connect(short)
        except OSError:
            return False
    return True


def ask(directory: Path, request: Request) -> Iterator[Row]:
    """The rows of a running relay's answer.

    Raises ConnectionRefusedError when no relay runs; LocalError when it refuses the request, when the
    operation fails, or when the relay stops before the end of its answer.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(directory) as short:
            sock.connect(short)
    except FileNotFoundError as exc:
        sock.close()
        raise ConnectionRefusedError(str(exc)) from exc
    except PermissionError as exc:
        sock.close()
        raise LocalError(
            f"{directory / SOCKET_NAME}: permission denied; run this as the relay's user"
        ) from exc
    except BaseException:
        sock.close()
        raise
    with sock, sock.makefile("rwb") as stream:
        stream.write(to_json({"operation": operation_of(request).name, "arguments": request}) + b"\n")
        stream.flush()
        for line in stream:
            row: Row = from_json(line)
            if row.get("end"):
                return
            if "error" in row:
                raise LocalError(row["error"])
            yield row
    raise LocalError("the relay stopped before the end of its answer")
