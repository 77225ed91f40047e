"""The transport of an SMTP session: replies that leave in few writes, reading that stops and continues, traces."""

import asyncio

from zonemta_py.intake.state import AUTH, COMMAND, DATA, State
from zonemta_py.smtp.dialogue_lines import DialogueLines
from zonemta_py.transports.tracing import TRACER, SessionTrace


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
        if self.transport is not None and not self.transport.is_closing():
            self._write(self.transport)
        self._replies.clear()

    def _write(self, transport: asyncio.Transport) -> None:
        replies = b"".join(self._replies)
        if TRACER.is_active:
            self._trace().server(replies)
        transport.write(replies)
        self._replies.clear()

    def _trace(self) -> SessionTrace:
        """The trace of this session, made anew when nothing was traced for a while."""
        trace = self._last_trace
        if trace is None or trace.activation != TRACER.activation:
            # The rest of a line that is not complete may be the end of a secret.
            is_cut = bool(self._unread) and not self._unread.endswith(b"\n")
            lines = DialogueLines(in_body=self._state is DATA, in_secret=self._state is AUTH or is_cut)
            self._last_trace = trace = TRACER.incoming(self._client_ip, lines)
        return trace
