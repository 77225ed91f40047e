"""One SMTP session, on top of aiosmtpd.

aiosmtpd keeps the connection, STARTTLS and the AUTH challenge; this owns the command loop, because
aiosmtpd's own costs three times as much per message and cannot stream DATA (decision 2). The
constructor sets aiosmtpd's attributes directly instead of reflecting over classes for every
connection; aiosmtpd is pinned and a test compares the two.

Replies to pipelined commands leave in one write, just before the session would wait.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, ClassVar

from aiosmtpd.smtp import MISSING, SMTP

from zonemta_py import clock
from zonemta_py.errors import QueueUnavailable
from zonemta_py.events.schema import Rejected
from zonemta_py.intake.commands import Refused, parse_mail, parse_rcpt
from zonemta_py.intake.ingest import Draft, Ingest
from zonemta_py.intake.port import Port
from zonemta_py.queue.records import Origin
from zonemta_py.smtp.transparency import DotDecoder

BLOCK_BYTES = 65_536
COMMAND_MAX = 4096  # octets: RFC 5321 asks for 512, parameters and UTF-8 need more
_HOST = re.compile(r"[\x21-\x7e\x80-\U0010ffff]{1,255}\Z")

log = logging.getLogger(__name__)


class Hangup(Exception):
    """The dialogue is over; what was replied goes out and the connection closes."""


class Session(SMTP):
    """A conversation with one client. Everything it may do is asked of its ``Port``."""

    _commands: ClassVar[dict[str, Callable[["Session", str], Any]]]

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
        self._timeout_handle = self._deadline = clock.Deadline(loop, self._timeout_cb)
        self._set_library_state(port)
        self._out: list[bytes] = []
        self._errors = 0
        self._helo = ""
        self._extended = False
        self._user = ""
        self._client_ip = ""
        self._set_rset_state()

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
        self._helo, self._extended = "", False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone; the dialogue ends wherever it is."""
        super().connection_lost(error)
        self._port.sessions.discard(self)

    def eof_received(self) -> bool | None:
        """The client sends no more; what it sent is still answered."""
        return asyncio.StreamReaderProtocol.eof_received(self)

    def _reset_timeout(self, duration: float | None = None) -> None:
        self._deadline.set(duration or self._timeout_duration)

    def _timeout_cb(self) -> None:
        if self.transport is not None:
            self._reply("421 4.4.2 Timed out waiting for you")
            self.transport.write(b"".join(self._out))
            self.transport.close()

    def _set_rset_state(self) -> None:
        self._sender: str | None = None
        self._smtputf8 = False
        self._recipients: dict[str, None] = {}

    @property
    def busy(self) -> bool:
        """Whether a transaction is under way."""
        return self._sender is not None

    @property
    def _secure(self) -> bool:
        return self.transport is not None and self.transport.get_extra_info("sslcontext") is not None

    def goodbye(self) -> None:
        """The relay is stopping: end the session unless a transaction is under way."""
        if self.transport is not None and not self.busy:
            self.transport.write(b"421 4.3.2 The relay is stopping\r\n")
            self.transport.close()

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
        try:
            await self._flush()
        except ConnectionError:
            pass
        if self.transport is not None:
            self.transport.close()

    async def _converse(self) -> None:
        if not self._port.admit(self):
            self._reply("421 4.3.2 Too many sessions, try again later")
            return
        self._reply(f"220 {self.hostname} ESMTP")
        while True:
            line = await self._next_line()
            verb, _, argument = line.partition(" ")
            command = self._commands.get(verb.upper())
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
        if b"\n" not in reader._buffer:
            await self._flush()
        self._deadline.set(self._timeout_duration)
        try:
            raw = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            self._reply("500 5.5.6 Line too long")
            raise Hangup from None
        while len(raw) > COMMAND_MAX or b"\0" in raw:
            self._refuse("500 5.5.6 Line too long" if len(raw) > COMMAND_MAX else "500 5.5.2 NUL in a command")
            await self._flush()
            raw = await reader.readuntil(b"\n")
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

    def _rejected(self, command: str, reply: str, recipient: str = "") -> Refused:
        """A refusal that an operator will ask about goes into the ledger."""
        self._port.queue.record(
            Rejected(
                time_ms=clock.now_ms(),
                listener=str(self._port.settings.address),
                client_ip=self._client_ip,
                helo=self._helo,
                user=self._user,
                command=command,
                sender=self._sender or "",
                recipient=recipient,
                code=int(reply[:3]),
                reply=reply[4:],
            )
        )
        return Refused(reply)

    # ---- commands

    def _helo_command(self, argument: str) -> None:
        self._greet(argument, extended=False)
        self._reply(f"250 {self.hostname}")

    def _ehlo_command(self, argument: str) -> None:
        self._greet(argument, extended=True)
        settings = self._port.settings
        lines = [self.hostname, "PIPELINING", f"SIZE {settings.max_message_size}", "8BITMIME", "SMTPUTF8"]
        if self._port.starttls_context is not None and not self._secure:
            lines.append("STARTTLS")
        if self._may_authenticate():
            lines.append("AUTH PLAIN LOGIN")
        lines.append("ENHANCEDSTATUSCODES")
        for line in lines[:-1]:
            self._reply(f"250-{line}")
        self._reply(f"250 {lines[-1]}")

    def _greet(self, argument: str, *, extended: bool) -> None:
        if not _HOST.match(argument):
            raise Refused("501 5.5.4 Your host name is needed")
        self._set_rset_state()
        self._helo, self._extended = argument, extended

    def _mail(self, argument: str) -> None:
        if not self._helo:
            raise Refused("503 5.5.1 Send EHLO first")
        if self._sender is not None:
            raise Refused("503 5.5.1 A transaction is under way")
        if not self._user and not self._port.trusts(self._client_ip):
            raise self._rejected("MAIL", "530 5.7.0 Authentication required")
        if self._port.stopping:
            self._reply("421 4.3.2 The relay is stopping")
            raise Hangup
        if self._port.queue.commits.failure is not None:
            raise self._rejected("MAIL", "451 4.3.0 The queue cannot be written, try again later")
        if not self._port.disk_room:
            raise self._rejected("MAIL", "452 4.3.1 Not enough disk space, try again later")
        mail = parse_mail(
            argument, extended=self._extended, max_size=self._port.settings.max_message_size
        )
        self._sender, self._smtputf8 = mail.sender, mail.smtputf8
        self._reply("250 2.1.0 Ok")

    def _rcpt(self, argument: str) -> None:
        if self._sender is None:
            raise Refused("503 5.5.1 Send MAIL first")
        address = parse_rcpt(argument, smtputf8=self._smtputf8)
        if len(self._recipients) >= self._port.settings.max_recipients:
            self._reply("452 4.5.3 Too many recipients")
            return
        self._recipients[address] = None
        self._reply("250 2.1.5 Ok")

    async def _data(self, argument: str) -> None:
        if argument:
            raise Refused("501 5.5.4 DATA takes no argument")
        if self._sender is None:
            raise Refused("503 5.5.1 Send MAIL first")
        if not self._recipients:
            raise Refused("554 5.5.1 No valid recipients")
        ingest = Ingest(self._port.queue, self._port.router, self._draft(self._sender))
        self._reply("354 End data with <CR><LF>.<CR><LF>")
        await self._flush()
        try:
            await self._receive(ingest)
        except BaseException:
            await ingest.abort()
            raise
        reply = await ingest.finish()
        if ingest.refusal:
            self._rejected("DATA", reply)
        self._set_rset_state()
        self._reply(reply)

    def _draft(self, sender: str) -> Draft:
        settings = self._port.settings
        protocol = "UTF8SMTP" if self._smtputf8 else ("ESMTP" if self._extended else "SMTP")
        protocol += ("S" if self._secure else "") + ("A" if self._user else "")
        return Draft(
            sender=sender,
            recipients=list(self._recipients),
            smtputf8=self._smtputf8,
            origin=Origin(
                str(settings.address),
                self._client_ip,
                self._helo.encode("utf-8", "replace").decode(),
                self._user,
                protocol,
            ),
            trusted_routing=True,
            hostname=self.hostname,
            max_size=settings.max_message_size,
            max_hops=settings.max_hops,
        )

    async def _receive(self, ingest: Ingest) -> None:
        """Stream the message to its end. The over-read octets are the next commands."""
        decoder = DotDecoder()
        reader, deadline, idle_s = self._reader, self._deadline, self._timeout_duration
        end_s = clock.monotonic_s() + self._port.settings.message_timeout
        while not decoder.done:
            left_s = end_s - clock.monotonic_s()
            if left_s <= 0 or ingest.hopeless:
                self._reply("421 4.4.2 This message takes too long")
                raise Hangup
            deadline.set(min(idle_s, left_s))
            block = await reader.read(BLOCK_BYTES)
            if not block:
                raise ConnectionResetError("the client left in the middle of a message")
            data = decoder.feed(block)
            if data:
                await ingest.feed(data)
        if decoder.rest:
            reader._buffer[:0] = decoder.rest
        deadline.set(idle_s)

    def _rset(self, argument: str) -> None:
        self._set_rset_state()
        self._reply("250 2.0.0 Ok")

    def _noop(self, argument: str) -> None:
        self._reply("250 2.0.0 Ok")

    def _vrfy(self, argument: str) -> None:
        self._reply("252 2.5.2 Send mail to it and see")

    def _help(self, argument: str) -> None:
        self._reply("214 2.0.0 EHLO HELO MAIL RCPT DATA RSET NOOP QUIT VRFY STARTTLS AUTH")

    def _unimplemented(self, argument: str) -> None:
        raise Refused("502 5.5.1 Command not implemented")

    def _quit(self, argument: str) -> None:
        self._reply("221 2.0.0 Bye")
        raise Hangup

    async def _starttls(self, argument: str) -> None:
        if argument:
            raise Refused("501 5.5.4 STARTTLS takes no argument")
        self.tls_context = self._port.starttls_context
        if self.tls_context is None or self._secure:
            raise Refused("503 5.5.1 TLS is not available here, or is on already")
        if self._reader._buffer:
            # What follows in plain text may be someone else's (CVE-2021-38371 and its kin).
            self._reply("554 5.5.1 Nothing may follow STARTTLS before its answer")
            raise Hangup
        await self._flush()
        try:
            await super().smtp_STARTTLS(None)
        except Exception as exc:
            log.info("TLS handshake with %s failed: %s", self._client_ip, exc.__cause__ or exc)
            self._out.clear()
            raise Hangup from None
        self._user = ""

    def _may_authenticate(self) -> bool:
        return self._port.users is not None and (self._secure or not self._port.settings.auth.require_tls)

    async def _auth(self, argument: str) -> None:
        users = self._port.users
        if users is None or not self._extended:
            raise Refused("503 5.5.1 AUTH is not available")
        if not self._may_authenticate():
            raise Refused("538 5.7.11 Encryption is required for AUTH")
        if self._user or self._sender is not None:
            raise Refused("503 5.5.1 Not now")
        mechanism, _, initial = argument.partition(" ")
        credentials = await self._credentials(mechanism.upper(), initial.strip())
        if credentials is None:
            self._refuse("501 5.5.2 AUTH was not completed")
            return
        name, password = credentials
        if await self.loop.run_in_executor(None, users.verify, name, password):
            self._user = name
            self._reply("235 2.7.0 Authentication successful")
        else:
            raise self._rejected("AUTH", "535 5.7.8 Authentication credentials invalid")

    async def _credentials(self, mechanism: str, initial: str) -> tuple[str, str] | None:
        """Name and password as the client gives them; None after a reply that ended it."""
        if mechanism == "PLAIN":
            raw = await self._response(initial, "")
            parts = raw.split("\0") if raw is not None else []
            return (parts[1], parts[2]) if len(parts) == 3 else None
        if mechanism == "LOGIN":
            name = await self._response(initial, "Username:")
            password = await self._response("", "Password:") if name is not None else None
            return (name, password) if name is not None and password is not None else None
        raise Refused("504 5.5.4 Unrecognized authentication type")

    async def _response(self, initial: str, challenge: str) -> str | None:
        if initial:
            from base64 import b64decode

            try:
                raw = b"" if initial == "=" else b64decode(initial, validate=True)
            except ValueError:
                return None
        else:
            await self._flush()
            answer = await self.challenge_auth(challenge)
            if answer is MISSING:
                return None
            raw = answer
        return raw.decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"<session {self._client_ip} {'busy' if self.busy else 'idle'}>"


Session._commands = {
    "HELO": Session._helo_command,
    "EHLO": Session._ehlo_command,
    "MAIL": Session._mail,
    "RCPT": Session._rcpt,
    "DATA": Session._data,
    "RSET": Session._rset,
    "NOOP": Session._noop,
    "VRFY": Session._vrfy,
    "HELP": Session._help,
    "EXPN": Session._unimplemented,
    "BDAT": Session._unimplemented,
    "QUIT": Session._quit,
    "STARTTLS": Session._starttls,
    "AUTH": Session._auth,
}
