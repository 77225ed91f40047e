"""The connection of an SMTP session: bytes to lines, lines to commands, replies in few writes.

Everything happens in plain calls from the event loop. While a command waits, for the disk or for a
password hash, the session is paused: what the client sends stays unread until ``resume``. No task and
no future is created between a command and its reply (decision 2).

Replies to pipelined commands leave in one write, just before the session would wait.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, ClassVar, cast

from zonemta_py.core import clock
from zonemta_py.intake.admission import OpenSession
from zonemta_py.intake.context import ListenerContext
from zonemta_py.intake.state import AUTH, CLOSED, COMMAND, DATA, PROXY, TLS, TRANSITIONS, Pause, State
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.smtp.commands import Refused
from zonemta_py.smtp.proxy import InvalidProxyHeader, read_proxy_header

UNREAD_MAX = 65_536  # bytes buffered during a pause; then the transport stops reading, too
LINGER_S = 5.0  # for the last replies to leave a closing connection
COMMAND_MAX = 4096  # bytes: RFC 5321 asks for 512, parameters and UTF-8 need more

_FOREIGN = re.compile(
    r"[^A-Za-z]|(?:GET|POST|PUT|HEAD|DELETE|PATCH|OPTIONS|TRACE|CONNECT|PROXY|SSH-)", re.I
)

log = logging.getLogger(__name__)


class CloseConnection(Exception):
    """The session is over: the replies so far are sent and the connection is closed."""


class Connection(asyncio.Protocol):
    """One client's connection. Subclasses bring the commands, and take challenges' answers and data.

    A command replies by ``_reply`` or raises Refused; CloseConnection ends the session.
    """

    _commands: ClassVar[dict[str, Callable[[Any, str], None]]]  # by verb; given the argument

    def __init__(self, context: ListenerContext, handshake: OpenSession | None = None) -> None:
        """``handshake``: what was counted for this client until now."""
        self._context = context
        self._counted = handshake
        self._loop = context.loop
        self.hostname = context.hostname
        self.transport: asyncio.Transport | None = None
        self._deadline = clock.Deadline(context.loop, self._timed_out)
        self._timeout_s = context.settings.idle_timeout
        self._state = COMMAND
        self._pauses: set[Pause] = set()
        self._reading_paused = False  # in the transport
        self._eof = False  # the client sends no more
        self._encrypted = False
        self._unread = bytearray()
        self._out: list[bytes] = []
        self._errors = 0
        self._client_ip = ""

    @property
    def busy(self) -> bool:
        """Whether a mail transaction is open."""
        return False

    def _auth_answered(self, line: str) -> None:
        """Handle a line received in State.AUTH."""
        raise NotImplementedError

    def _message_data(self, data: bytes) -> None:
        """Handle bytes received in State.DATA; those after the final dot go back to ``_unread``."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """Abort what the session has begun; called at its end, perhaps twice."""

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet a new client, or refuse it when there are too many."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._client_ip = peer[0].removeprefix("::ffff:") if isinstance(peer, tuple) else ""
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        if self._counted is not None:
            self._context.ended(self._counted)
        refusal = self._context.admit(self, self._client_ip)
        if refusal:
            self._reply(refusal)
            self._end()
            return
        self._deadline.set(self._timeout_s)
        if self._context.is_proxy(self._client_ip):
            self._enter(PROXY)
        else:
            self._reply(f"220 {self.hostname} ESMTP")
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session, whatever its state."""
        self._enter(CLOSED)
        self._out.clear()
        self._deadline.cancel()
        self._context.ended(self)
        self._abandon()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client, or keep them during a pause."""
        if self._state is CLOSED:
            return
        if self._pauses:
            self._unread += data
            if len(self._unread) > UNREAD_MAX and self.transport is not None:
                self._reading_paused = True
                self.transport.pause_reading()
        elif self._state is DATA and not self._unread:
            self._deadline.set(self._timeout_s)
            self._run(self._message_data, data)  # not copied
        else:
            self._unread += data
            self._run()

    def eof_received(self) -> bool:
        """The client sends no more; what it sent is still answered. TLS has no half-closed state."""
        self._eof = True
        if not self._pauses:
            self._run()
        return not self._encrypted

    def pause_writing(self) -> None:
        """The client does not read its replies: it gets no more until it does."""
        self._pauses.add(Pause.WRITING)

    def resume_writing(self) -> None:
        """The client reads its replies again."""
        self._pauses.discard(Pause.WRITING)
        if not self._pauses:
            self.resume()

    # ---- the end of a session

    def close_if_idle(self) -> None:
        """The relay is stopping: end the session unless a transaction is open."""
        if self._state is TLS:
            self.abort()
        elif self._state is not CLOSED and not self.busy:
            self._reply("421 4.3.2 The relay is stopping")
            self._end()

    def _timed_out(self) -> None:
        if self._state is TLS:
            self.abort()  # a reply would not be understood
        elif self.transport is not None:
            self._reply("421 4.4.2 Timed out waiting for you")
            self._end()

    def abort(self) -> None:
        """Close the connection without a reply."""
        if self.transport is not None:
            self.transport.abort()

    def _end(self) -> None:
        """Send the last replies and close; abort if the client does not read them."""
        self._enter(CLOSED)
        self._deadline.cancel()
        self._context.ended(self)
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

    # ---- states and pauses

    def _enter(self, state: State) -> None:
        assert state in TRANSITIONS[self._state], f"{state.name} after {self._state.name}"
        self._state = state

    def pause(self) -> None:
        """Leave unread what the client sends, until ``resume``."""
        self._pauses.add(Pause.RESULT)

    def wait_for(
        self, future: CommitFuture, step: Callable[..., None] | None = None, *arguments: Any
    ) -> None:
        """Call ``step`` when ``future`` is done: now, or after a pause."""
        if not future.done:
            self.pause()
            future.add_done_callback(lambda _: self.resume(step, *arguments))
        elif step is not None:
            step(*arguments)

    def resume(self, step: Callable[..., None] | None = None, *arguments: Any) -> None:
        """End a pause: call ``step``, then handle what the client has sent meanwhile."""
        self._pauses.discard(Pause.RESULT)
        if self._state is CLOSED:
            return
        self._deadline.set(self._timeout_s)
        self._run(step, *arguments)
        if self._reading_paused and self._handling:
            self._reading_paused = False
            if self.transport is not None:
                self.transport.resume_reading()

    @property
    def _handling(self) -> bool:
        """Whether bytes from the client are handled as they come."""
        return not self._pauses and self._state is not CLOSED

    # ---- bytes to lines to commands to replies

    def _run(self, step: Callable[..., None] | None = None, *arguments: Any) -> None:
        """Call ``step``, handle what is unread, then send the replies."""
        try:
            if step is not None:
                self._call(step, *arguments)
            self._handle_unread()
        except CloseConnection:
            self._end()
        except Exception:
            log.exception("session with %s failed", self._client_ip)
            self._reply("421 4.3.0 Internal error")
            self._end()
        else:
            if self._out:
                self._flush()

    def _call(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except Refused as exc:
            self._refuse(exc.reply)

    def _handle_unread(self) -> None:
        """Until no more can be handled, or a pause. Raises CloseConnection."""
        while not self._pauses:
            state = self._state
            if state is COMMAND or state is AUTH:
                line = self._next_line()
                if line is None:
                    break
                # Whole lines count: a client that sends a byte now and then is idle.
                self._deadline.set(self._timeout_s)
                self._call(self._command if state is COMMAND else self._auth_answered, line)
            elif state is DATA:
                if not self._unread:
                    break
                data = bytes(self._unread)
                self._unread.clear()
                self._deadline.set(self._timeout_s)
                self._call(self._message_data, data)
            elif state is CLOSED:
                return
            elif not self._read_proxy_header():
                break
        else:
            return
        if self._eof:
            raise CloseConnection

    def _next_line(self) -> str | None:
        """The next whole line without its end; None until it is complete. Raises CloseConnection."""
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

    def _command(self, line: str) -> None:
        verb, _, argument = line.partition(" ")
        command = self._commands.get(verb) or self._commands.get(verb.upper())
        if command is None:
            if _FOREIGN.match(line):
                # A web browser can be made to send these, with SMTP commands after them.
                self._reply("421 4.7.0 This is not SMTP")
                raise CloseConnection
            raise Refused("500 5.5.2 Command not recognized")
        command(self, argument.strip())

    def _read_proxy_header(self) -> bool:
        """Read the header in which a proxy names its client; False while it is incomplete."""
        try:
            header = read_proxy_header(bytes(self._unread))
        except InvalidProxyHeader as exc:
            log.warning("the proxy %s sent no valid PROXY header: %s", self._client_ip, exc)
            self._reply("421 4.7.0 This is not the PROXY protocol")
            raise CloseConnection from exc
        if header is None:
            return False
        del self._unread[: header.size]
        self._client_ip = header.client_ip or self._client_ip
        self._enter(COMMAND)
        self._reply(f"220 {self.hostname} ESMTP")
        return True

    def _reply(self, text: str) -> None:
        self._out.append(text.encode("utf-8", "replace") + b"\r\n")

    def _flush(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"".join(self._out))
        self._out.clear()

    def _refuse(self, reply: str) -> None:
        self._reply(reply)
        self._errors += 1
        if self._errors >= self._context.settings.max_errors:
            self._reply("421 4.7.0 Too many errors")
            raise CloseConnection
