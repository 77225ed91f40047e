"""Who a client is: STARTTLS and AUTH.

Source: RFC 3207 (STARTTLS), RFC 4954 (AUTH).

Commands that change nothing, or end everything: NOOP, VRFY, HELP, QUIT.

Source: RFC 5321 sections 4.1.1.6 to 4.1.1.10.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from zonemta_py.intake.connection import CloseConnection, Connection
from zonemta_py.intake.context import Port
from zonemta_py.smtp import sasl
from zonemta_py.smtp.commands import Refused

HANDSHAKE_S = 60.0

log = logging.getLogger(__name__)


class Identified(Connection):
    """A connection that may be encrypted and may have a user. A subclass brings the mail."""

    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self._user = ""
        self._extended = False  # it said EHLO

    def _start_again(self) -> None:
        """Under TLS, all that was said before is forgotten (RFC 3207 section 4.2)."""
        self._user, self._extended = "", False

    def _rejected(self, command: str, reply: str, recipient: str = "") -> Refused:
        """A refusal that an operator will ask about; a subclass records it."""
        return Refused(reply)

    def _starttls(self, argument: str) -> None:
        if argument:
            raise Refused("501 5.5.4 STARTTLS takes no argument")
        if self._port.starttls_context is None or self._secure:
            raise Refused("503 5.5.1 TLS is not available here, or is on already")
        if self._unread:
            # What follows in plain text may be someone else's (CVE-2021-38371 and its kin).
            self._reply("554 5.5.1 Nothing may follow STARTTLS before its answer")
            raise CloseConnection
        self._encrypt(self._start_again)

    def _encrypt(self, then: Callable[[], None]) -> None:
        """Say 220, shake hands, and take ``then`` under TLS; a handshake that fails ends everything."""
        assert self.transport is not None
        self.hold()
        self._shaking = True
        self.transport.pause_reading()  # the client's first octets of TLS are not ours
        self._reply("220 Ready to start TLS")
        self._flush()
        self._loop.create_task(self._shake_hands(then))

    async def _shake_hands(self, then: Callable[[], None]) -> None:
        plain = self.transport
        assert plain is not None
        assert self._port.starttls_context is not None
        limit_s = min(HANDSHAKE_S, self._timeout_s)
        try:
            async with asyncio.timeout(limit_s):
                self.transport = await self._loop.start_tls(
                    plain, self, self._port.starttls_context, server_side=True, ssl_handshake_timeout=limit_s
                )  # fmt: skip
            if self.transport is None or self.transport.is_closing():
                raise ConnectionError("closed")
        except Exception as exc:
            log.info("TLS handshake with %s failed: %s", self._client_ip, exc.__cause__ or exc)
            self._out.clear()
            plain.abort()
            self.connection_lost(None)  # nobody else says so after a handshake that failed
            return
        finally:
            self._shaking = False
        self._secure = True
        self.go_on(then)

    def _may_authenticate(self) -> bool:
        return self._port.users is not None and (
            self._secure or not self._port.settings.auth.require_tls
        )

    def _auth(self, argument: str) -> None:
        if self._port.users is None or not self._extended:
            raise Refused("503 5.5.1 AUTH is not available")
        if not self._may_authenticate():
            raise Refused("538 5.7.11 Encryption is required for AUTH")
        if self._user or self.busy:
            raise Refused("503 5.5.1 Not now")
        mechanism, _, initial = argument.partition(" ")
        exchange = sasl.MECHANISMS.get(mechanism.upper())
        if exchange is None:
            raise Refused("504 5.5.4 Unrecognized authentication type")
        self._challenge(exchange(initial.strip()), None)

    def _challenge(self, exchange: sasl.Exchange, answer: str | None) -> None:
        """Go on with an exchange: ask what it wants to know, or check what it found."""
        try:
            challenge = exchange.send(answer)
        except StopIteration as end:
            if end.value is None:
                raise Refused("501 5.5.2 AUTH was not completed") from None
            self._verify(*end.value)
        else:
            self._reply(f"334 {challenge}")
            self._answer_to = partial(self._challenge, exchange)

    def _verify(self, name: str, password: str) -> None:
        users = self._port.users
        assert users is not None
        self.hold()
        checked = self._loop.run_in_executor(None, users.verify, name, password)
        checked.add_done_callback(lambda done: self.go_on(self._verified, name, done))

    def _verified(self, name: str, checked: asyncio.Future[bool]) -> None:
        if not checked.result():
            raise self._rejected("AUTH", "535 5.7.8 Authentication credentials invalid")
        self._user = name
        self._reply("235 2.7.0 Authentication successful")


IDLE_COMMANDS_MAX = 100  # NOOP, RSET and the like between two messages


class PoliteConnection(Identified):
    """A connection that answers what is only polite. A subclass brings the mail."""

    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self._idle_commands = 0

    def _count_idle(self) -> None:
        """Commands that do nothing are free only so often, or a session could be held for ever."""
        self._idle_commands += 1
        if self._idle_commands > IDLE_COMMANDS_MAX:
            self._reply("421 4.7.0 Too many commands without a message")
            raise CloseConnection

    def _noop(self, argument: str) -> None:
        self._count_idle()
        self._reply("250 2.0.0 Ok")

    def _vrfy(self, argument: str) -> None:
        self._count_idle()
        self._reply("252 2.5.2 Send mail to it and see")

    def _help(self, argument: str) -> None:
        self._count_idle()
        self._reply("214 2.0.0 EHLO HELO MAIL RCPT DATA RSET NOOP QUIT VRFY STARTTLS AUTH")

    def _unimplemented(self, argument: str) -> None:
        raise Refused("502 5.5.1 Command not implemented")

    def _quit(self, argument: str) -> None:
        self._reply("221 2.0.0 Bye")
        raise CloseConnection
