"""The connection of an SMTP session: octets to lines, lines to commands, replies in few writes.

Everything happens in plain calls from the event loop. A command that must wait, for the disk or
for a password hash, *holds* the dialogue: what the client sends meanwhile stays unread, and
``go_on`` takes it up again. No task and no future stands between a client's line and its answer
(decision 2).

Replies to pipelined commands leave in one write, just before the session would wait.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, ClassVar, cast

from zonemta_py.core import clock
from zonemta_py.intake.context import Port
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.smtp.commands import Refused
from zonemta_py.smtp.proxy import NotProxied, read_proxied

UNREAD_MAX = 65_536  # octets kept of a client that sends while it is held
LINGER_S = 5.0  # how long a closing connection may take to send its last words
COMMAND_MAX = 4096  # octets: RFC 5321 asks for 512, parameters and UTF-8 need more

_FOREIGN = re.compile(
    r"[^A-Za-z]|(?:GET|POST|PUT|HEAD|DELETE|PATCH|OPTIONS|TRACE|CONNECT|PROXY|SSH-)", re.I
)

log = logging.getLogger(__name__)


class CloseConnection(Exception):
    """The dialogue is over; what was replied goes out and the connection closes."""


class Connection(asyncio.Protocol):
    """One client's connection. A subclass brings the commands, and may take octets as they come.

    A command replies by ``_reply`` or raises Refused; ``CloseConnection`` ends the dialogue.
    """

    _commands: ClassVar[dict[str, Callable[[Any, str], None]]]

    def __init__(self, port: Port) -> None:
        self._port = port
        self._loop = port.loop
        self.hostname = port.hostname
        self.transport: asyncio.Transport | None = None
        self._deadline = clock.Deadline(port.loop, self._timed_out)
        self._timeout_s = port.settings.idle_timeout
        self._unread = bytearray()
        self._out: list[bytes] = []
        self._taker: Callable[[bytes], None] | None = None  # gets octets, instead of lines
        self._answer_to: Callable[[str], None] | None = None  # gets the next line, instead of a command
        self._held = False  # for something of ours
        self._stalled = False  # the client does not read
        self._choked = False  # the client is not read
        self._eof = False
        self._over = False
        self._shaking = False  # hands, for TLS
        self._secure = False
        self._errors = 0
        self._client_ip = ""
        self._header = b""  # of the PROXY protocol, while it comes

    @property
    def busy(self) -> bool:
        """Whether a transaction is under way."""
        return False

    # ---- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new connection: greeted, or turned away when there are too many."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._client_ip = peer[0].removeprefix("::ffff:") if isinstance(peer, tuple) else ""
        self._secure = transport.get_extra_info("sslcontext") is not None
        if not self._port.admit(self):
            self._reply("421 4.3.2 Too many sessions, try again later")
            self._end()
            return
        self._deadline.set(self._timeout_s)
        if self._port.is_proxy(self._client_ip):
            self._taker = self._proxied
        else:
            self._reply(f"220 {self.hostname} ESMTP")
            self._flush()

    def _proxied(self, octets: bytes) -> None:
        """What a proxy says before its client may speak: who that is."""
        self._header += octets
        try:
            found = read_proxied(self._header)
        except NotProxied as exc:
            log.warning("%s is to be a proxy: %s", self._client_ip, exc)
            self._reply("421 4.7.0 This is not the PROXY protocol")
            raise CloseConnection from exc
        if found is None:
            return
        self._taker = None
        self._client_ip = found.client_ip or self._client_ip
        self._unread[:0] = self._header[found.used :]
        self._header = b""
        self._reply(f"220 {self.hostname} ESMTP")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; the dialogue ends wherever it is."""
        self._over = True
        self._out.clear()
        self._deadline.cancel()
        self._port.sessions.discard(self)
        self._abandon()

    def _abandon(self) -> None:
        """Nothing follows: give up what was begun."""

    def data_received(self, data: bytes) -> None:
        """The client says something."""
        if self._over:
            return
        self._deadline.set(self._timeout_s)
        if self._held or self._stalled:
            self._unread += data
            if len(self._unread) > UNREAD_MAX and self.transport is not None:
                self._choked = True
                self.transport.pause_reading()
        elif self._taker is not None and not self._unread:
            self._attempt(self._taker, data)
        else:
            self._unread += data
            self._attempt()

    def eof_received(self) -> bool:
        """The client sends no more; what it sent is still answered. TLS knows no half-closed state."""
        self._eof = True
        if not self._held and not self._stalled:
            self._attempt()
        return not self._secure

    def pause_writing(self) -> None:
        """The client does not read its replies: it gets no more until it does."""
        self._stalled = True

    def resume_writing(self) -> None:
        """It reads again."""
        self._stalled = False
        if not self._held:
            self.go_on()

    def _timed_out(self) -> None:
        if self.transport is None:
            return
        if self._shaking:
            self.transport.abort()  # there is nobody to say a word to
        else:
            self._reply("421 4.4.2 Timed out waiting for you")
            self._end()

    def goodbye(self) -> None:
        """The relay is stopping: end the session unless a transaction is under way."""
        if self._shaking and self.transport is not None:
            self.transport.abort()
        elif not self._over and not self.busy:
            self._reply("421 4.3.2 The relay is stopping")
            self._end()

    def _end(self) -> None:
        """Say what is still to be said and close; a client that does not read is cut off."""
        self._over = True
        self._deadline.cancel()
        self._port.sessions.discard(self)
        self._abandon()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size():
            transport.abort()
            return
        transport.write(b"".join(self._out))
        self._out.clear()
        transport.close()
        if transport.get_write_buffer_size():
            self._loop.call_later(LINGER_S, transport.abort)

    # ---- the dialogue

    def hold(self) -> None:
        """Nothing more is read until ``go_on``."""
        self._held = True

    def when(self, promise: CommitFuture, step: Callable[..., None], *arguments: Any) -> None:
        """Take ``step`` when ``promise`` is kept or broken: now, or the dialogue is held until then."""
        if promise.done:
            step(*arguments)
        else:
            self.hold()
            promise.add_done_callback(lambda _: self.go_on(step, *arguments))

    def go_on(self, step: Callable[..., None] | None = None, *arguments: Any) -> None:
        """What the dialogue was held for is there: take ``step``, then what the client has sent meanwhile."""
        self._held = False
        if self._over:
            return
        self._deadline.set(self._timeout_s)
        self._attempt(step, *arguments)
        if self._choked and not (self._held or self._stalled or self._over):
            self._choked = False
            if self.transport is not None:
                self.transport.resume_reading()

    def _attempt(self, step: Callable[..., None] | None = None, *arguments: Any) -> None:
        """Take ``step``, then work through what is unread; then say what there is to say."""
        try:
            if step is not None:
                self._guarded(step, *arguments)
            self._work_through()
        except CloseConnection:
            self._end()
        except Exception:
            log.exception("session with %s failed", self._client_ip)
            self._reply("421 4.3.0 Internal error")
            self._end()
        else:
            if self._out:
                self._flush()

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except Refused as exc:
            self._refuse(exc.reply)

    def _work_through(self) -> None:
        while not (self._held or self._stalled or self._over):
            if self._taker is not None:
                if not self._unread:
                    break
                octets = bytes(self._unread)
                self._unread.clear()
                self._guarded(self._taker, octets)
            else:
                line = self._next_line()
                if line is None:
                    break
                self._guarded(self._obey, line)
        else:
            return
        if self._eof:
            raise CloseConnection

    def _next_line(self) -> str | None:
        """The next whole line without its end, None when there is none. Raises Hangup."""
        unread = self._unread
        while (end := unread.find(b"\n")) >= 0:
            raw = unread[: end + 1]
            del unread[: end + 1]
            if len(raw) <= COMMAND_MAX and b"\0" not in raw:
                return raw.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
            if not raw[:1].isalpha():
                self._reply("421 4.7.0 This is not SMTP")
                raise CloseConnection
            long = len(raw) > COMMAND_MAX
            self._refuse("500 5.5.6 Line too long" if long else "500 5.5.2 NUL in a command")
        if len(unread) > UNREAD_MAX:
            self._reply("500 5.5.6 Line too long")
            raise CloseConnection
        return None

    def _obey(self, line: str) -> None:
        if self._answer_to is not None:
            answer_to, self._answer_to = self._answer_to, None
            answer_to(line)
            return
        verb, _, argument = line.partition(" ")
        command = self._commands.get(verb) or self._commands.get(verb.upper())
        if command is None:
            if _FOREIGN.match(line):
                # A web browser can be made to send these, with mail in what follows.
                self._reply("421 4.7.0 This is not SMTP")
                raise CloseConnection
            raise Refused("500 5.5.2 Command not recognized")
        command(self, argument.strip())

    def _reply(self, text: str) -> None:
        self._out.append(text.encode("utf-8", "replace") + b"\r\n")

    def _flush(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"".join(self._out))
        self._out.clear()

    def _refuse(self, reply: str) -> None:
        self._reply(reply)
        self._errors += 1
        if self._errors >= self._port.settings.max_errors:
            self._reply("421 4.7.0 Too many errors")
            raise CloseConnection
