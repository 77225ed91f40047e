"""Asks a running relay over its control socket; see ``control``. Imports little: every command begins with it."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zonemta_py.admin.requests import Request, Row, name_of
from zonemta_py.core.codec import from_json, to_json
from zonemta_py.core.errors import LocalError, UnknownName

SOCKET_NAME = "control.sock"


@contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """A short path of the socket in ``directory``: that of a Unix socket is limited to 107 bytes."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET_NAME}"
    finally:
        os.close(handle)


def is_running(directory: Path) -> bool:
    """True if a relay answers at the control socket of a queue."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            with short_path(directory) as short:
                sock.connect(short)
        except OSError:
            return False
    return True


def ask(directory: Path, request: Request) -> Iterator[Row]:
    """The rows of a running relay's answer.

    Raises ConnectionRefusedError when no relay runs; LocalError when it refuses the request, when the
    operation fails, or when the relay stops before the end of its answer.
    """
    try:
        asked = to_json({"operation": name_of(request), "arguments": request}) + b"\n"
    except UnicodeEncodeError as exc:  # bytes of the command line that are no UTF-8
        raise LocalError("expected arguments in UTF-8") from exc
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_path(directory) as short:
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
        stream.write(asked)
        stream.flush()
        for line in stream:
            row: Row = from_json(line)
            if row.get("end"):
                return
            if "error" in row:
                raise (UnknownName if row.get("unknown_name") else LocalError)(row["error"])
            yield row
    raise LocalError("the relay stopped before the end of its answer")
