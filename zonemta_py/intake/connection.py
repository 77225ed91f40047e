"""The connection of an SMTP session: bytes to lines, lines to commands, replies in few writes.

States of a session (``State``, ``TRANSITIONS``); each may be followed by CLOSED::

    connected ─▶ PROXY ─▶ COMMAND ◀──▶ AUTH    a challenge of AUTH, until it is answered
        └────────────────▶    ◀──▶ DATA        after 354, until the final dot
                              ◀──▶ TLS         after the 220 of STARTTLS, until the handshake ends

Pauses (``Pause``) are independent of the state: while there is one, bytes of the client stay in ``_unread``, and beyond
UNREAD_MAX in the kernel.

Invariants:

- All steps are plain calls on the event loop. No task and no future is created between a command and its reply (decision 2);
  a command that needs the disk or a password hash pauses the session until ``resume``.
- Commands are handled in the order of their bytes, one at a time, and none during a pause. So replies have the order of the
  commands (RFC 2920), and a pipelined command never overtakes one that waits.
- Replies are collected, and leave in one write just before the session would wait.
- Every way into CLOSED calls ``_abandon``; what is in progress is aborted, and nothing is handled afterwards.
- The time limit starts again with each whole line or block of data, not with each byte of a command, and is off while the relay
  works on a command.

Callers: asyncio calls the methods of ``asyncio.Protocol``; ``session.Session`` defines the commands; the listener calls
``close_if_idle``, the limits of sessions ``give_up``.

Example: MAIL, RCPT and DATA arrive in one block, and MAIL has a submission key. MAIL pauses for the look-up; RCPT and DATA stay
unread. ``resume`` adds the 250 to MAIL, handles the other two, and the three replies leave in one write.

Source: RFC 5321 sections 4.1.1 and 4.5.3.2 (time limits), RFC 2920 (pipelining).
"""

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, cast

from zonemta_py.core import clock
from zonemta_py.intake.context import TOO_MANY, ListenerContext
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.queue.submitters.limits import SessionClaim
from zonemta_py.smtp.auth import InvalidProxyHeader, read_proxy_header
from zonemta_py.smtp.commands import Refused
from zonemta_py.smtp.dialogue import DialogueLines
from zonemta_py.transports.tracing import TRACER, SessionTrace

log = logging.getLogger(__name__)


# ---- States and pauses.


class State(StrEnum):
    """The meaning of the next bytes from the client."""

    PROXY = "a header of the PROXY protocol"
    COMMAND = "a command"
    AUTH = "the answer to a challenge of AUTH"
    DATA = "a message, up to its final dot"
    TLS = "a TLS handshake"
    CLOSED = "ignored"


# Compared for every line of a client: module attributes are found faster than members of the class.
PROXY, COMMAND, AUTH, DATA, TLS, CLOSED = State

TRANSITIONS = {
    PROXY: (COMMAND, CLOSED),
    COMMAND: (DATA, AUTH, TLS, PROXY, CLOSED),
    AUTH: (COMMAND, CLOSED),
    DATA: (COMMAND, CLOSED),
    TLS: (COMMAND, CLOSED),
    CLOSED: (CLOSED,),
}


class Pause(StrEnum):
    """A reason to leave bytes from the client unread."""

    RESULT = "a write, a password check or a TLS handshake is under way"
    WRITING = "the client does not read its replies"
    TURN = "sessions have computed enough in this turn of the event loop"


# ---- The transport: replies that leave in few writes, reading that stops and continues, traces.


class ClientTransport(asyncio.Protocol):
    """The transport of a client, what it has sent that is not handled, and the replies that have not left."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._state: State = COMMAND
        self._unread = bytearray()
        self._replies: list[bytes] = []
        self._reading_paused = False
        self._encrypted = False
        self._client_ip = ""
        self._last_trace: SessionTrace | None = None

    def abort(self) -> None:
        """Close the connection without a reply."""
        if self.transport is not None:
            self.transport.abort()

    def _pause_reading(self) -> None:
        if self.transport is not None:
            self._reading_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and self.transport is not None:
            self._reading_paused = False
            self.transport.resume_reading()

    def _reply(self, text: str) -> None:
        self._replies.append(text.encode("utf-8", "replace") + b"\r\n")

    def _flush(self) -> None:
        """Send the replies, unless the connection is being closed."""
        replies, self._replies = self._replies, []
        if self.transport is not None and not self.transport.is_closing():
            data = replies[0] if len(replies) == 1 else b"".join(replies)
            if TRACER.is_active:
                self._trace().server(data)
            self.transport.write(data)

    def _trace(self) -> SessionTrace:
        """The trace of this session; a new one after a time without traces."""
        trace = self._last_trace
        if trace is None or trace.activation != TRACER.activation:
            # The rest of a line that is not complete may be the end of a secret.
            is_cut = bool(self._unread) and not self._unread.endswith(b"\n")
            lines = DialogueLines(in_body=self._state is DATA, in_secret=self._state is AUTH or is_cut)
            self._last_trace = trace = TRACER.incoming(self._client_ip, lines)
        return trace


# ---- Lines of commands, and the end of a session that sends none.

UNREAD_MAX = 65_536  # bytes buffered during a pause; then the transport stops reading, too
COMMAND_MAX = 4096  # bytes: RFC 5321 asks for 512, parameters and UTF-8 need more

NOT_SMTP = "421 4.7.0 This is not SMTP"

_FOREIGN = re.compile(
    r"[^A-Za-z]|(?:GET|POST|PUT|HEAD|DELETE|PATCH|OPTIONS|TRACE|CONNECT|PROXY|SSH-)", re.I
)


class CloseConnection(Exception):
    """The session is over: the replies so far and ``reply`` are sent, and the connection is closed."""

    def __init__(self, reply: str = "") -> None:
        super().__init__(reply)
        self.reply = reply


def take_line(unread: bytearray) -> str | None:
    """Remove the next whole line, without its end; None until it is complete.

    Raises Refused for a line that is removed without being a command, and CloseConnection.
    """
    end = unread.find(b"\n")
    if end < 0:
        if len(unread) > UNREAD_MAX:
            raise CloseConnection("500 5.5.6 Line too long")
        return None
    raw = unread[: end + 1]
    del unread[: end + 1]
    if len(raw) <= COMMAND_MAX and b"\0" not in raw:
        return raw.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
    if not raw[:1].isalpha():
        raise CloseConnection(NOT_SMTP)
    raise Refused("500 5.5.6 Line too long" if len(raw) > COMMAND_MAX else "500 5.5.2 NUL in a command")


def unknown_command(line: str) -> Exception:
    """The exception for a line whose verb is not known.

    A web browser can be made to send the verbs of HTTP, with SMTP commands after them.
    """
    if _FOREIGN.match(line):
        return CloseConnection(NOT_SMTP)
    return Refused("500 5.5.2 Command not recognized")


# ---- The connection.

LINGER_S = 5.0  # for the last replies to reach the client of a closing connection


class Connection(ClientTransport, ABC):
    """One client's connection. Subclasses define the commands, and handle replies to challenges and message data.

    A command replies by ``_reply`` or raises Refused; CloseConnection ends the session.
    """

    _commands: ClassVar[dict[str, Callable[[Any, str], None]]]  # by verb; given the argument

    def __init__(self, context: ListenerContext) -> None:
        super().__init__()
        self._context = context
        self.proxied_ip: str | None = None  # the client that a proxy has named before TLS
        self._loop = context.loop
        self._turns = context.turns
        self.hostname = context.hostname
        self._deadline = clock.Deadline(context.loop, self._timed_out)
        self._timeout_s = context.settings.idle_timeout
        self._pauses: set[Pause] = set()
        self._counted: SessionClaim | None = None  # where open sessions are limited
        self._eof = False  # the client sends no more
        self._errors = 0

    @property
    def busy(self) -> bool:
        """True if a mail transaction is open."""
        return False

    @abstractmethod
    def _auth_answered(self, line: str) -> None:
        """Handle a line received in State.AUTH."""

    @abstractmethod
    def _message_data(self, data: bytes) -> None:
        """Handle bytes received in State.DATA; those after the final dot go back to ``_unread``."""

    def _abandon(self) -> None:
        """Abort what the session has begun; called at its end, perhaps twice."""
        if self._counted is not None:
            self._counted.close()

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet a new client, or refuse it when there are too many."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        peer_ip = peer[0].removeprefix("::ffff:") if isinstance(peer, tuple) else ""
        self._client_ip = peer_ip if self.proxied_ip is None else self.proxied_ip
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        if self._state is CLOSED:  # the relay stopped during the TLS handshake
            self.abort()
            return
        refusal = self._context.admit(self, self._client_ip, is_named=self.proxied_ip is not None)
        if refusal:
            self._reply(refusal)
            self._end()
            return
        self._deadline.set(self._timeout_s)
        if self.proxied_ip is None and self._context.is_proxy(self._client_ip):
            self._enter(PROXY)
        elif self._context.rules.limits.has_open_sessions:
            self._run(self._step, self._claim_and_greet)
        else:
            self._reply(f"220 {self.hostname} ESMTP")
            self._flush()

    def _claim_and_greet(self) -> None:
        """Greet the client, a trusted one once its session counts; another one's counts with AUTH."""
        if self._context.trusts(self._client_ip):
            self._count_session("", self._reply, f"220 {self.hostname} ESMTP")
        else:
            self._reply(f"220 {self.hostname} ESMTP")

    def _count_session(self, user: str, step: Callable[..., None], *arguments: Any) -> None:
        """Call ``step`` once the session is counted, instead of before, as that of ``user``."""
        if self._counted is not None:
            self._counted.close()
        claim = self._counted = self._context.claim(user, self._client_ip)
        self.wait_for(claim, self._claimed, claim, step, *arguments)

    def _claimed(self, claim: SessionClaim, step: Callable[..., None], *arguments: Any) -> None:
        if claim.refusal:
            raise CloseConnection(claim.refusal)
        step(*arguments)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session, whatever its state."""
        self._enter(CLOSED)
        self._replies.clear()
        self._deadline.cancel()
        self._context.ended(self)
        self._abandon()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client, or keep them during a pause."""
        if self._state is CLOSED:
            return
        if TRACER.is_active:
            self._trace().client(data)
        if self._pauses:
            self._unread += data
            if len(self._unread) > UNREAD_MAX:
                self._pause_reading()
        elif self._turns.is_over():
            self._unread += data
            self._wait_for_turn()
        elif self._state is DATA and not self._unread:
            self._deadline.set(self._timeout_s)
            self._run(self._step, self._message_data, data)  # not copied
        else:
            self._unread += data
            self._run(self._handle_unread)

    def eof_received(self) -> bool:
        """Note that the client sends no more; what it sent is still answered. TLS has no half-closed state."""
        self._eof = True
        if self._state is CLOSED:
            return False
        if not self._pauses:
            self._run(self._step)
        return not self._encrypted

    def pause_writing(self) -> None:
        """Pause: the client does not read its replies."""
        self._pauses.add(Pause.WRITING)

    def resume_writing(self) -> None:
        """End the pause: the client reads its replies again."""
        self._pauses.discard(Pause.WRITING)
        if not self._pauses:
            self.resume()

    # ---- the end of a session

    def close_if_idle(self) -> None:
        """End the session unless a transaction is open: the relay is stopping."""
        if self._state is TLS or (self._state is CLOSED and self.transport is not None):
            self.abort()
        elif not self.busy:
            self._reply("421 4.3.2 The relay is stopping")
            self._end()

    def give_up(self) -> None:
        """End the session: another client needs its place."""
        if self._state is TLS or self._state is CLOSED:
            self.abort()
        else:
            self._reply(TOO_MANY)
            self._end()

    def _timed_out(self) -> None:
        if self._state is TLS or self._state is CLOSED:
            self.abort()  # a reply would not be understood, or was sent
        elif self.transport is not None:
            self._reply("421 4.4.2 Timed out waiting for you")
            self._end()

    def _end(self, *, linger: bool = False) -> None:
        """Send the last replies and close; abort if the client does not read them.

        ``linger``: the client may still be sending. Closing with data unread resets the connection, and a
        reset can overtake the replies: what comes is discarded until the client closes, for LINGER_S.
        """
        self._enter(CLOSED)
        self._deadline.cancel()
        self._abandon()
        transport = self.transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            self._context.ended(self)
            self.abort()
            return
        self._flush()
        self._unread.clear()
        if linger and not self._eof:
            if transport.can_write_eof():
                transport.write_eof()
            self._resume_reading()
            self._deadline.set(LINGER_S)
            return
        self._context.ended(self)
        transport.close()
        if transport.get_write_buffer_size():
            self._loop.call_later(LINGER_S, transport.abort)

    # ---- states and pauses

    def _enter(self, state: State) -> None:
        assert state in TRANSITIONS[self._state], f"{state.name} after {self._state.name}"
        self._state = state

    def pause(self) -> None:
        """Leave unread what the client sends, without a time limit for it, until ``resume``."""
        self._pauses.add(Pause.RESULT)
        self._deadline.clear()

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
        self._run(self._step, step, *arguments)
        if not self._pauses:
            self._resume_reading()

    def _wait_for_turn(self) -> None:
        self._pauses.add(Pause.TURN)
        self._turns.wait(self._on_turn)

    def _on_turn(self) -> None:
        self._pauses.discard(Pause.TURN)
        if self._state is CLOSED or self._pauses:
            return
        self._run(self._handle_unread)  # nothing has come since: the time limit stays
        if not self._pauses:
            self._resume_reading()

    # ---- bytes to lines to commands to replies

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Call ``work``, which handles what is unread, then send the replies."""
        try:
            work(*arguments)
        except Exception as exc:
            self._failed(exc)
        else:
            if self._replies:
                self._flush()

    def _step(self, step: Callable[..., None] | None = None, *arguments: Any) -> None:
        """Call ``step``, then handle what is unread, in a turn of its own if this one is over."""
        if step is not None:
            try:
                step(*arguments)
            except Refused as exc:
                self._refuse(exc.reply)
        if self._unread and not self._pauses and self._turns.is_over():
            self._wait_for_turn()
        else:
            self._handle_unread()

    def _failed(self, exc: Exception) -> None:
        """End the session: it is over, or a defect."""
        if isinstance(exc, CloseConnection):
            if exc.reply:
                self._reply(exc.reply)
            self._end(linger=True)
        else:
            log.error("session with %s failed", self._client_ip, exc_info=exc)
            self._reply("421 4.3.0 Internal error")
            self._end()

    def _handle_unread(self) -> None:
        """Handle what was read, until it is incomplete, the session pauses, or its turn is over. Raises CloseConnection."""
        is_first = True
        while not self._pauses:
            state = self._state
            if state is CLOSED:
                return
            if not self._unread:
                break
            if is_first:
                is_first = False
            elif self._turns.is_over():
                self._wait_for_turn()
                return
            try:
                if state is COMMAND:
                    line = take_line(self._unread)
                    if line is None:
                        break
                    # Whole lines count: a client that sends a byte now and then is idle.
                    self._deadline.set(self._timeout_s)
                    self._command(line)
                elif state is DATA:
                    data = bytes(self._unread)
                    self._unread.clear()
                    self._deadline.set(self._timeout_s)
                    self._message_data(data)
                elif not (self._take_answer() if state is AUTH else self._read_proxy_header()):
                    break
            except Refused as exc:
                self._refuse(exc.reply)
        else:
            return
        if self._eof:
            raise CloseConnection

    def _take_answer(self) -> bool:
        """Handle the answer to a challenge of AUTH; False while it is incomplete."""
        try:
            line = take_line(self._unread)
        except Refused:
            self._enter(COMMAND)  # what follows is a command
            raise
        if line is not None:
            self._deadline.set(self._timeout_s)
            self._auth_answered(line)
        return line is not None

    def _command(self, line: str) -> None:
        verb, _, argument = line.partition(" ")
        command = self._commands.get(verb) or self._commands.get(verb.upper())
        if command is None:
            raise unknown_command(line)
        command(self, argument.strip())

    def _read_proxy_header(self) -> bool:
        """Read the header in which a proxy names its client; False while it is incomplete."""
        try:
            header = read_proxy_header(bytes(self._unread))
        except InvalidProxyHeader as exc:
            log.warning("the proxy %s sent no valid PROXY header: %s", self._client_ip, exc)
            raise CloseConnection("421 4.7.0 This is not the PROXY protocol") from exc
        if header is None:
            return False
        del self._unread[: header.size]
        if header.client_ip is not None:
            self._client_ip, self._last_trace = header.client_ip, None
        self._context.ended(self)  # as one of the proxy
        if refusal := self._context.admit(self, self._client_ip, is_named=True):
            raise CloseConnection(refusal)
        self._enter(COMMAND)
        if self._context.rules.limits.has_open_sessions:
            self._claim_and_greet()
        else:
            self._reply(f"220 {self.hostname} ESMTP")
        return True

    def _refuse(self, reply: str) -> None:
        self._reply(reply)
        self._errors += 1
        if self._errors >= self._context.settings.max_errors:
            raise CloseConnection("421 4.7.0 Too many errors")
