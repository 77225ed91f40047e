"""Questions to name servers, by c-ares: one UDP socket for each server, TCP for truncated answers.

The only importer of pycares. All of it runs in the loop's thread (decision 67): the loop watches the sockets of
c-ares, and after ``close`` its callbacks do nothing.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pycares

from zonemta_py.config.endpoints import HostPort

TYPES = {"A": 1, "AAAA": 28, "MX": 15, "TXT": 16}  # numbers of record types (RFC 1035, RFC 3596)
# The first try of c-ares ends after five times what the last answers took, between 0.25 s and this share of the time of
# the look-up; each further one takes twice as long: two lost datagrams do not fail a look-up.
TRIES = 5
FIRST_TRY = 1 / 7
RECEIVE_BUFFER_BYTES = 4 << 20  # thousands of answers while the loop is busy; the kernel may give less
# Then a channel is replaced: c-ares remembers every answer, 1.4 KB each, which ``MxResolver`` does itself. A new one does not
# know yet which server is dead (decision 123).
QUESTIONS_MAX = 10_000
TIMER_MAX_S = 1.0  # between two looks of c-ares at the age of its questions

Records = Sequence[Any]  # with ``ttl`` and ``data``: ``addr``, or ``priority`` and ``exchange``


class NameNotFound(Exception):
    """There is no such domain."""


class QueryFailed(Exception):
    """No answer, or none that can be used."""


class DnsChannel:
    """Questions to ``servers``, or to those of the system (None); needs a running loop."""

    def __init__(self, servers: Sequence[HostPort] | None, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._read: set[int] = set()
        self._written: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._asked = 0  # questions whose answer is waited for
        self._questions = 0  # so far
        self._is_closed = self._is_retired = False
        self._channel = pycares.Channel(
            servers=[_at(server) for server in servers] if servers is not None else None,
            timeout=timeout_s * FIRST_TRY,
            tries=TRIES,
            socket_receive_buffer_size=RECEIVE_BUFFER_BYTES,
            sock_state_cb=self._socket_changed,
        )

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._is_closed

    @property
    def is_full(self) -> bool:
        """Whether another channel should take its place; ``retire`` it then."""
        return self._questions >= QUESTIONS_MAX

    async def query(self, name: str, rdtype: str) -> Records:
        """The records of type ``rdtype`` of ``name``, behind a CNAME too; none if there are none.

        Raises NameNotFound, QueryFailed.
        """
        future: asyncio.Future[Records] = self._loop.create_future()
        kind = TYPES[rdtype]
        self._asked += 1
        self._questions += 1
        try:
            self._channel.query(name, kind, callback=partial(self._answered, future, kind))
        except (pycares.AresError, ValueError) as exc:  # such as a name that cannot be asked for
            if not future.done():
                future.set_exception(QueryFailed(str(exc.args[-1])))
        self._set_timer()
        try:
            async with asyncio.timeout(self._timeout_s):  # c-ares asks each server for as long
                return await future
        except TimeoutError as exc:
            raise QueryFailed("Timeout while contacting DNS servers") from exc
        finally:
            self._asked -= 1
            if self._is_retired and not self._asked:
                self._loop.call_soon(self.close)  # not inside a callback of the channel

    def _answered(
        self, future: asyncio.Future[Records], kind: int, result: Any, error: int | None
    ) -> None:
        if self._is_closed:
            return
        if future.done():
            pass  # its look-up has ended
        elif error is None:
            future.set_result([record for record in result.answer if record.type == kind])
        elif error == pycares.errno.ARES_ENODATA:
            future.set_result(())
        elif error == pycares.errno.ARES_ENOTFOUND:
            future.set_exception(NameNotFound())
        else:
            future.set_exception(QueryFailed(pycares.errno.strerror(error)))

    # ---- sockets and time

    def _socket_changed(self, fd: int, readable: bool, writable: bool) -> None:
        if self._is_closed:
            return  # c-ares closes its sockets, in a thread of its own
        if readable:
            self._loop.add_reader(fd, self._process, fd, pycares.ARES_SOCKET_BAD)
            self._read.add(fd)
        elif fd in self._read:
            self._loop.remove_reader(fd)
            self._read.discard(fd)
        if writable:
            self._loop.add_writer(fd, self._process, pycares.ARES_SOCKET_BAD, fd)
            self._written.add(fd)
        elif fd in self._written:
            self._loop.remove_writer(fd)
            self._written.discard(fd)

    def _process(self, readable: int, writable: int) -> None:
        if not self._is_closed:
            self._channel.process_fd(readable, writable)
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is None and self._asked and not self._is_closed:
            timeout_s: float = self._channel.timeout()  # type: ignore[no-untyped-call]  # it has no annotations
            wait_s = min(timeout_s or TIMER_MAX_S, TIMER_MAX_S)
            self._timer = self._loop.call_later(wait_s, self._look_at_time)

    def _look_at_time(self) -> None:
        self._timer = None
        self._process(pycares.ARES_SOCKET_BAD, pycares.ARES_SOCKET_BAD)

    # ---- the end

    def retire(self) -> None:
        """No question follows: close when every question has its answer or its asker has gone."""
        self._is_retired = True
        if not self._asked:
            self.close()

    def close(self) -> None:
        """Close the sockets. Questions without an answer fail."""
        if self._is_closed:
            return
        self._channel.cancel()  # calls ``_answered`` for each
        self._is_closed = True
        for fd in self._read:
            self._loop.remove_reader(fd)
        for fd in self._written:
            self._loop.remove_writer(fd)
        if self._timer is not None:
            self._timer.cancel()
        self._channel.close()


def _at(server: HostPort) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{host}:{server.port}"
