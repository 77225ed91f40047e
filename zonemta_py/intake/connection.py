"""The connection of an SMTP session and its command loop, on top of aiosmtpd.

aiosmtpd keeps the stream, the connection's life and STARTTLS; this owns the loop, because aiosmtpd's
own costs three times as much per message and cannot stream DATA (decision 2). The constructor sets
aiosmtpd's attributes directly instead of reflecting over classes for every connection; aiosmtpd is
pinned and a test compares the two. The one door to aiosmtpd.

Replies to pipelined commands leave in one write, just before the session would wait.
"""

import asyncio
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, ClassVar

from aiosmtpd.smtp import SMTP

from zonemta_py import clock
from zonemta_py.intake.commands import Refused
from zonemta_py.intake.port import Port

BLOCK_BYTES = 65_536
LINGER_S = 5.0  # how long a closing connection may take to send its last words
IDLE_COMMANDS_MAX = 100  # NOOP, RSET and the like between two messages
HANDSHAKE_S = 60.0
COMMAND_MAX = 4096  # octets: RFC 5321 asks for 512, parameters and UTF-8 need more

_FOREIGN = re.compile(
    r"[^A-Za-z]|(?:GET|POST|PUT|HEAD|DELETE|PATCH|OPTIONS|TRACE|CONNECT|PROXY|SSH-)", re.I
)

log = logging.getLogger(__name__)


class Hangup(Exception):
    """The dialogue is over; what was replied goes out and the connection closes."""


class Connection(SMTP):
    """One client's connection. A subclass brings the commands: sync ones, or coroutines.

    A command replies by ``_reply`` or raises Refused; ``Hangup`` ends the dialogue.
    """

    def _end(self) -> None:
        """Say what is still to be said and close; a client that does not read is cut off."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size():
            transport.abort()
            return
        transport.write(b"".join(self._out))
        self._out.clear()
        lingers = transport.get_write_buffer_size() > 0
        transport.close()
        if lingers:
            self.loop.call_later(LINGER_S, transport.abort)

    @property
    def busy(self) -> bool:
        """Whether a transaction is under way."""
        return False

    def goodbye(self) -> None:
        """The relay is stopping: end the session unless a transaction is under way."""
        transport = self.transport
        if self._shaking:
            self._original_transport.abort()
        elif transport is not None and not transport.is_closing() and not self.busy:
            transport.write(b"421 4.3.2 The relay is stopping\r\n")
            transport.close()

    _commands: ClassVar[dict[str, Callable[[Any, str], Any]]]

    def __init__(self, port: Port) -> None:
        self._port = port
        loop = asyncio.get_running_loop()
        asyncio.StreamReaderProtocol.__init__(
            self,
            asyncio.StreamReader(limit=BLOCK_BYTES, loop=loop),
            client_connected_cb=self._cb_client_connected,
            loop=loop,
        )
        self.loop = loop
        self._timeout_duration = port.settings.idle_timeout
        self._deadline = clock.Deadline(loop, self._timeout_cb)
        self._timeout_handle: Any = self._deadline
        self._set_library_state(port)
        self._out: list[bytes] = []
        self._errors = 0
        self._shaking = False  # hands, for TLS
        self._client_ip = ""

    def _set_library_state(self, port: Port) -> None:
        """What SMTP.__init__ would set, for the parts of it that are used."""
        self.__ident__ = "zonemta"
        self.event_handler = None
        self.data_size_limit = port.settings.max_message_size
        self.enable_SMTPUTF8 = True
        self._decode_data = False
        self.hostname = port.hostname
        self.tls_context = port.starttls_context
        self.require_starttls = False
        self._tls_handshake_okay = True
        self._tls_protocol: Any = None
        self._original_transport: Any = None
        self.session: Any = None
        self.envelope: Any = None
        self.transport: Any = None
        self._handler_coroutine: Any = None
        self._auth_require_tls = port.settings.auth.require_tls
        self._proxy_timeout = None
        self._authenticator = None
        self._auth_callback = None
        self._auth_required = False
        self._auth_methods: dict[str, Any] = {}
        self._handle_hooks: dict[str, Any] = {}
        self._ehlo_hook_ver = None
        self._smtp_methods: dict[str, Any] = {}
        self._enforce_call_limit = False

    # ---- the connection

    def connection_made(self, transport: Any) -> None:
        """A new connection, or the same one after STARTTLS: all that was said before is forgotten."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._client_ip = peer[0].removeprefix("::ffff:") if isinstance(peer, tuple) else ""

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone; the dialogue ends wherever it is."""
        super().connection_lost(error)
        self._port.sessions.discard(self)

    def eof_received(self) -> bool | None:
        """The client sends no more; what it sent is still answered. TLS knows no half-closed state."""
        keep = asyncio.StreamReaderProtocol.eof_received(self)
        return keep and not self._secure

    def _reset_timeout(self, duration: float | None = None) -> None:
        self._deadline.set(duration or self._timeout_duration)

    def _timeout_cb(self) -> None:
        if self._shaking:
            self._original_transport.abort()  # there is nobody to say a word to
        elif self.transport is not None:
            self._reply("421 4.4.2 Timed out waiting for you")
            self._end()

    @property
    def _unread(self) -> bytearray:
        """What the client has sent and nobody has read; its stream keeps it in a private attribute."""
        stream: Any = self._reader
        buffer: bytearray = stream._buffer
        return buffer

    @property
    def _secure(self) -> bool:
        return self.transport is not None and self.transport.get_extra_info("sslcontext") is not None

    # ---- the dialogue

    async def _handle_client(self) -> None:
        try:
            await self._converse()
        except Hangup:
            pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self._out.clear()
        except Exception:
            log.exception("session with %s failed", self._client_ip)
            self._reply("421 4.3.0 Internal error")
        finally:
            self._end()
            # After a handshake that failed nobody else says that the connection is lost.
            self._deadline.cancel()
            self._port.sessions.discard(self)

    async def _converse(self) -> None:
        if not self._port.admit(self):
            self._reply("421 4.3.2 Too many sessions, try again later")
            return
        self._reply(f"220 {self.hostname} ESMTP")
        while True:
            line = await self._next_line()
            verb, _, argument = line.partition(" ")
            command = self._commands.get(verb.upper())
            if command is None and _FOREIGN.match(line):
                # A web browser can be made to send these, with mail in what follows.
                self._reply("421 4.7.0 This is not SMTP")
                return
            try:
                if command is None:
                    raise Refused("500 5.5.2 Command not recognized")
                result = command(self, argument.strip())
                if result is not None:
                    await result
            except Refused as exc:
                self._refuse(exc.reply)

    async def _next_line(self) -> str:
        reader = self._reader
        if b"\n" not in self._unread:
            await self._flush()
        self._deadline.set(self._timeout_duration)
        try:
            raw = await reader.readuntil(b"\n")
            while len(raw) > COMMAND_MAX or b"\0" in raw:
                if not raw[:1].isalpha():
                    self._reply("421 4.7.0 This is not SMTP")
                    raise Hangup
                self._refuse(
                    "500 5.5.6 Line too long" if len(raw) > COMMAND_MAX else "500 5.5.2 NUL in a command"
                )
                await self._flush()
                raw = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            self._reply("500 5.5.6 Line too long")
            raise Hangup from None
        return raw.rstrip(b"\r\n").decode("utf-8", "surrogateescape")

    def _reply(self, text: str) -> None:
        self._out.append(text.encode("utf-8", "replace") + b"\r\n")

    async def _flush(self) -> None:
        if self._out and self.transport is not None:
            self._writer.write(b"".join(self._out))
            self._out.clear()
            await self._writer.drain()

    async def push(self, status: str | bytes) -> None:
        """aiosmtpd's way to reply, for the parts of it that are used."""
        self._reply(status if isinstance(status, str) else status.decode())
        await self._flush()

    def _refuse(self, reply: str) -> None:
        self._reply(reply)
        self._errors += 1
        if self._errors >= self._port.settings.max_errors:
            self._reply("421 4.7.0 Too many errors")
            raise Hangup

    async def _challenge(self, initial: str, challenge: str) -> str | None:
        """The client's answer to an AUTH challenge, or its initial response; None if it gives up."""
        if not initial:
            self._reply(f"334 {b64encode(challenge.encode()).decode()}")
            initial = (await self._next_line()).strip()
            if initial == "*":
                return None
        try:
            return b64decode("" if initial == "=" else initial, validate=True).decode("utf-8", "replace")
        except ValueError:
            return None

    async def _encrypt(self) -> None:
        """Answer STARTTLS with 220 and shake hands. Raises Hangup when that fails."""
        await self._flush()
        self._shaking = True
        try:
            async with asyncio.timeout(min(HANDSHAKE_S, self._timeout_duration)):
                await super().smtp_STARTTLS(None)
            if self._original_transport.is_closing():
                raise ConnectionError("closed")  # which the library takes for a handshake that went well
        except Exception as exc:
            log.info("TLS handshake with %s failed: %s", self._client_ip, exc.__cause__ or exc)
            self._out.clear()
            self._original_transport.abort()
            raise Hangup from None
        finally:
            self._shaking = False
