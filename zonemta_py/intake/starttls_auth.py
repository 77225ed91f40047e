"""EHLO, STARTTLS and AUTH: who the client is.

Source: RFC 5321 section 4.1.1.1, RFC 3207 (STARTTLS), RFC 4954 (AUTH).
"""

import asyncio
import logging
import re
import ssl
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from zonemta_py.core import clock
from zonemta_py.intake.command_lines import CloseConnection
from zonemta_py.intake.connection import Connection
from zonemta_py.intake.context import ListenerContext
from zonemta_py.intake.message_options import latest_release
from zonemta_py.intake.state import AUTH, COMMAND, TLS
from zonemta_py.smtp import sasl
from zonemta_py.smtp.commands import KEY_WINDOW, Refused

HANDSHAKE_S = 60.0
IDLE_COMMANDS_MAX = 100  # NOOP, RSET and the like between two messages

_HOST = re.compile(r"[\x21-\x7e\x80-\ud7ff\ue000-\U0010ffff]{1,255}\Z")  # no surrogates: valid UTF-8

log = logging.getLogger(__name__)


class SecureConnection(Connection):
    """A connection that may be encrypted and may have a user. A subclass brings the mail."""

    def __init__(self, context: ListenerContext) -> None:
        super().__init__(context)
        self._helo = ""
        self._user = ""  # empty before AUTH
        self._login = ""  # the stored hash of the password at AUTH
        self._extended = False  # the client said EHLO
        self._exchange: sasl.Exchange | None = None  # in State.AUTH
        self._idle_commands = 0  # since the last message
        self._withdraw_check: Callable[[], None] | None = None  # while a password is checked

    @abstractmethod
    def _reset_transaction(self) -> None:
        """Forget the mail transaction."""

    def _reset_session(self) -> None:
        """Forget what the client said before TLS (RFC 3207 section 4.2)."""
        self._helo, self._user, self._login, self._extended = "", "", "", False
        self._reset_transaction()

    def _rejected(self, command: str, reply: str, *, user: str = "") -> Refused:
        """The refusal of a command, recorded by a subclass as a ``rejected`` event."""
        return Refused(reply)

    # ---- HELO, EHLO

    def _helo_command(self, argument: str) -> None:
        self._greet(argument, extended=False)
        self._reply(f"250 {self.hostname}")

    def _ehlo_command(self, argument: str) -> None:
        self._greet(argument, extended=True)
        size = f"SIZE {self._context.settings.max_message_size}"
        lines = [self.hostname, "PIPELINING", size, "8BITMIME", "SMTPUTF8", "DSN"]
        if self._context.starttls_context is not None and not self._encrypted:
            lines.append("STARTTLS")
        if self._may_authenticate():
            lines.append("AUTH PLAIN LOGIN")
        may_send = bool(self._user) or self._context.trusts(self._client_ip)
        if may_send or self._may_authenticate():  # a client need not send EHLO again after AUTH
            keys = self._context.settings.submission_key
            if keys.envid_prefix:
                lines.append(f"{KEY_WINDOW} {int(keys.window)}")
            release = latest_release(self._context.settings.options, clock.now_ms())
            lines += [f"FUTURERELEASE {release}", "DELIVERBY"]
        for line in lines:
            self._reply(f"250-{line}")
        self._reply("250 ENHANCEDSTATUSCODES")

    def _greet(self, argument: str, *, extended: bool) -> None:
        if not _HOST.match(argument):
            raise Refused("501 5.5.4 Your host name is needed")
        self._count_idle()
        self._reset_transaction()
        self._helo, self._extended = argument, extended

    def _count_idle(self) -> None:
        """Limit the commands without a message, with which a client could hold a session forever."""
        self._idle_commands += 1
        if self._idle_commands > IDLE_COMMANDS_MAX:
            raise CloseConnection("421 4.7.0 Too many commands without a message")

    # ---- STARTTLS

    def _starttls(self, argument: str) -> None:
        if argument:
            raise Refused("501 5.5.4 STARTTLS takes no argument")
        if self._context.starttls_context is None or self._encrypted:
            raise Refused("503 5.5.1 TLS is not available here, or is on already")
        if self._unread:
            # Plain text after STARTTLS may come from an attacker (CVE-2021-38371 and similar ones).
            raise CloseConnection("554 5.5.1 Nothing may follow STARTTLS before its answer")
        assert self.transport is not None
        self.pause()
        self._enter(TLS)
        self.transport.pause_reading()  # the first bytes of TLS are for the new transport
        self._reply("220 Ready to start TLS")
        self._flush()
        self._loop.create_task(self._handshake(self._context.starttls_context))

    async def _handshake(self, context: ssl.SSLContext) -> None:
        plain = self.transport
        assert plain is not None
        limit_s = min(HANDSHAKE_S, self._timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                self.transport = await self._loop.start_tls(
                    plain, self, context, server_side=True, ssl_handshake_timeout=limit_s
                )  # fmt: skip
            if self.transport is None or self.transport.is_closing():
                raise ConnectionError("closed")
        except Exception as exc:
            log.info("TLS handshake with %s failed: %s", self._client_ip, exc.__cause__ or exc)
            self._replies.clear()
            plain.abort()
            self.connection_lost(None)  # asyncio does not call it after a failed handshake
            return
        if self._state is TLS:
            self._enter(COMMAND)
            self._encrypted = True
        self.resume(self._reset_session)

    # ---- AUTH

    def _may_authenticate(self) -> bool:
        return self._context.users is not None and (
            self._encrypted or not self._context.settings.auth.require_tls
        )

    def _auth(self, argument: str) -> None:
        if self._context.users is None or not self._extended:
            raise Refused("503 5.5.1 AUTH is not available")
        if not self._may_authenticate():
            raise Refused("538 5.7.11 Encryption is required for AUTH")
        if self._user or self.busy:
            raise Refused("503 5.5.1 Not now")
        mechanism, _, initial = argument.partition(" ")
        make_exchange = sasl.MECHANISMS.get(mechanism.upper())
        if make_exchange is None:
            raise Refused("504 5.5.4 Unrecognized authentication type")
        self._continue_exchange(make_exchange(initial.strip()), None)

    def _auth_answered(self, line: str) -> None:
        """The client answered a challenge."""
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        self._enter(COMMAND)
        self._continue_exchange(exchange, line)

    def _continue_exchange(self, exchange: sasl.Exchange, answer: str | None) -> None:
        """Send the next challenge, or verify the password. Raises Refused for an incomplete exchange."""
        try:
            challenge = exchange.send(answer)
        except StopIteration as end:
            if end.value is None:
                raise Refused("501 5.5.2 AUTH was not completed") from None
            self._verify(*end.value)
        else:
            self._reply(f"334 {challenge}")
            self._exchange = exchange
            self._enter(AUTH)

    def _verify(self, name: str, password: str) -> None:
        users = self._context.users
        assert users is not None
        self.pause()
        step = partial(self.resume, self._verified, name, users.hash_of(name))
        self._withdraw_check = self._context.passwords.check(
            users, name, password, self._client_ip, step
        )

    def _abandon(self) -> None:
        """Withdraw the question about a password, too."""
        super()._abandon()
        if self._withdraw_check is not None:
            self._withdraw_check()
            self._withdraw_check = None

    def _verified(self, name: str, login: str, refusal: str) -> None:
        self._withdraw_check = None
        refusal = refusal or self._context.authenticated(self, name, self._client_ip)
        if refusal:
            refused = self._rejected("AUTH", refusal, user=name)
            if refusal.startswith("421"):
                raise CloseConnection(refusal)
            raise refused
        if self._context.rules.limits.has_open_sessions:
            self._count_session(name, self._authenticated, name, login)
        else:
            self._authenticated(name, login)

    def _authenticated(self, name: str, login: str) -> None:
        self._user, self._login = name, login
        self._reply("235 2.7.0 Authentication successful")
