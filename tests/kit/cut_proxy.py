"""A TCP proxy in front of a server of HTTP, which cuts chosen answers short, or drops them."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

PIECE_BYTES = 65_536

CutAfter = Callable[
    [bytes], int | None
]  # the beginning of a request: bytes of its answer, or None for all


class CutProxy:
    """Passes connections to ``port``; ``cut_after`` decides for each request. ``cuts`` counts those that were cut."""

    def __init__(self, port: int, cut_after: CutAfter) -> None:
        self.cut_after = cut_after
        self.cuts = 0
        self._target = port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]

    def serve(self) -> None:
        """Accept until ``close``."""
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        limits: list[int | None] = [None]
        with client, socket.create_connection(("127.0.0.1", self._target)) as server, suppress(OSError):
            Thread(target=self._answers, args=(server, client, limits), daemon=True).start()
            while data := client.recv(PIECE_BYTES):
                if data.startswith((b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")):
                    limits[0] = self.cut_after(data)
                server.sendall(data)

    def _answers(self, server: socket.socket, client: socket.socket, limits: list[int | None]) -> None:
        with suppress(OSError):
            while data := server.recv(PIECE_BYTES):
                if limits[0] is not None and not data.startswith(b"HTTP/1.1 100"):
                    self.cuts += 1
                    client.sendall(data[: limits[0]])
                    break
                client.sendall(data)
        for each in (client, server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Accept no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def cut_proxy(endpoint: str, cut_after: CutAfter) -> Iterator[CutProxy]:
    """A proxy in front of the server with the URL ``endpoint``."""
    proxy = CutProxy(int(endpoint.rpartition(":")[2]), cut_after)
    Thread(target=proxy.serve, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
