"""The control socket: JSON lines over a Unix socket in the queue directory, for its owner only.

A request is one line, ``{"command": …, "arguments": {…}}``. The answer is one line per row, then
``{"end": true}`` or ``{"error": …}``. The socket is reached through the directory's descriptor,
because the path of a Unix socket may not be longer than 107 octets.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zonemta_py.admin.operations import Operations
from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import LocalError

SOCKET_NAME = "control.sock"
REQUEST_MAX = 65_536

log = logging.getLogger(__name__)


@contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET_NAME}"
    finally:
        os.close(handle)


class ControlServer:
    """Answers operators of this relay."""

    def __init__(self, directory: Path, operations: Operations) -> None:
        self._directory = directory
        self._operations = operations
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen. A socket left by a dead relay is replaced: the database's lock says it is dead."""
        path = self._directory / SOCKET_NAME
        path.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short_path(self._directory) as short:
            sock.bind(short)
        path.chmod(0o600)
        self._server = await asyncio.start_unix_server(self._accept, sock=sock, limit=REQUEST_MAX)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            line = await reader.readline()
            if line:
                await self._answer(line, writer)
        except (ConnectionError, ValueError, asyncio.CancelledError):
            pass  # whoever asked has left, or asked what is no request
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            request = from_json(line)
            async for row in self._operations.run(request["command"], request.get("arguments", {})):
                writer.write(to_json(row) + b"\n")
                await writer.drain()
            writer.write(b'{"end":true}\n')
        except (LocalError, KeyError, TypeError) as exc:
            writer.write(to_json({"error": str(exc)}) + b"\n")
        await writer.drain()

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        try:
            (self._directory / SOCKET_NAME).unlink(missing_ok=True)
        except OSError as exc:
            log.warning("%s stays: %s", self._directory / SOCKET_NAME, exc)


def ask(directory: Path, command: str, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a running relay's answer. Raises ConnectionError when none runs, LocalError when it refuses."""
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
        stream.write(to_json({"command": command, "arguments": arguments}) + b"\n")
        stream.flush()
        for line in stream:
            row = from_json(line)
            if row.get("end"):
                return
            if "error" in row:
                raise LocalError(row["error"])
            yield row
    raise LocalError("the relay stopped in the middle of its answer")
