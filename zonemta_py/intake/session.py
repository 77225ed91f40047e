"""An SMTP session: the client's identity, its commands, and the mail transaction that is open.

The identity (``SecureConnection``) grows by HELO or EHLO, STARTTLS and AUTH; STARTTLS resets it (RFC 3207 section 4.2). The
transaction (``Session``) has these states::

    none ─ MAIL ─▶ sender ─ RCPT ─▶ recipients ─ DATA ─▶ receiving ─ final dot ─▶ stored or refused ─▶ none

RSET, a new greeting and a refused MAIL lead back to *none*.

Invariants:

- A transaction is open exactly while ``_sender`` is not None (``busy``); a stop of the relay waits for it, up to its grace time.
- The 250 to the final dot is written in ``_message_end`` only, when the receiver has a result: the message is on disk.
- A submission key belongs to ``_claim`` while it is looked up, then to ``_receiver``; ``_abandon`` releases it from either.
- Nothing may follow STARTTLS in clear text (CVE-2021-38371): bytes after it end the session.
- A user whose stored hash has changed since AUTH must authenticate again before the next MAIL.

Callers: ``connection.Connection`` calls the commands in ``Session._commands``, and ``_auth_answered`` and ``_message_data`` by
state; the listener makes a session for each connection.

Example, without STARTTLS and limits (client C, relay S)::

    C: EHLO a.example          S: 250-relay.example … 250 ENHANCEDSTATUSCODES
    C: MAIL FROM:<x@a.example> S: 250 2.1.0 Ok         ``busy`` from here
    C: RCPT TO:<y@b.example>   S: 250 2.1.5 Ok
    C: DATA                    S: 354 …                ``MessageReceiver`` takes the data
    C: (message) .             S: 250 2.0.0 Ok: queued as 019a…

Source: RFC 5321 section 4.1, RFC 2920 (pipelining), RFC 3207 (STARTTLS), RFC 3461 (DSN), RFC 4954 (AUTH), RFC 6531 (SMTPUTF8).
"""

import asyncio
import logging
import re
import ssl
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from zonemta_py.config.tenants import LimitRules
from zonemta_py.core import clock
from zonemta_py.core.errors import NotAccepted, QueueUnavailable
from zonemta_py.events.schema import Rejected
from zonemta_py.intake.connection import AUTH, COMMAND, DATA, TLS, CloseConnection, Connection
from zonemta_py.intake.context import NO_SPACE, ListenerContext
from zonemta_py.intake.message import LOOKALIKE, UNDER_WAY, UNWRITABLE, MessageReceiver
from zonemta_py.intake.options import latest_release, of_mail
from zonemta_py.intake.queue_client import LimitsClient
from zonemta_py.intake.stamping import MessageEnvelope
from zonemta_py.intake.submission_key import ENVID, SubmissionKeyClaim, key_question
from zonemta_py.intake.users import WRONG, RepeatedRefusal
from zonemta_py.queue.format.records import NO_OPTIONS, Origin
from zonemta_py.queue.submitters.keys import KeyLookup
from zonemta_py.queue.submitters.limits import Charge, LimitedClient, Use, client_of
from zonemta_py.smtp import auth
from zonemta_py.smtp.commands import KEY_WINDOW, Rcpt, Refused, parse_mail, parse_rcpt
from zonemta_py.smtp.transparency import DotDecoder

log = logging.getLogger(__name__)


# ---- Limits of the client, at MAIL.
#
# A message is charged at its end (``message.py``); here a client that has reached a limit is refused before it sends one.


class MailLimits:
    """``recipients_max``: how many recipients a message may have by the limits of its client; None: any number."""

    def __init__(self) -> None:
        self._counted: LimitedClient | None = None  # whose session it is, once it counts
        self.recipients_max: int | None = None

    def ask(self, limits: LimitsClient, rules: LimitRules, client: LimitedClient) -> Charge | None:
        """Ask if ``client`` may send a message now; None: it has no limits. Its first message counts the session."""
        found = [each for _, each in rules.of(*client)]
        numbers = [each.recipients_max for each in found if each.recipients_max is not None]
        self.recipients_max = min(numbers, default=None)
        if not found:
            return None
        if client == self._counted or not any(each.sessions for each in found):
            return Charge().answer(limits.closed(client), 0)
        return self._count(limits, client)

    def _count(self, limits: LimitsClient, client: LimitedClient) -> Charge:
        """Count the session, then ask whether a message may follow."""
        charge, answer = limits.charge(client, Use(sessions=1)), Charge()

        def charged(failure: QueueUnavailable | None) -> None:
            if failure is not None:
                answer.finish(failure)
                return
            if not charge.refusal:
                self._counted = client
            answer.answer(charge.refusal or limits.closed(client), 0)

        charge.add_done_callback(charged)
        return answer


# ---- Identity: EHLO, STARTTLS and AUTH.
#
# Source: RFC 5321 section 4.1.1.1, RFC 3207 (STARTTLS), RFC 4954 (AUTH).

HANDSHAKE_S = 60.0
IDLE_COMMANDS_MAX = 100  # NOOP, RSET and the like between two messages

_HOST = re.compile(r"[\x21-\x7e\x80-\ud7ff\ue000-\U0010ffff]{1,255}\Z")  # no surrogates: valid UTF-8


class SecureConnection(Connection):
    """A connection that may be encrypted and may have a user. A subclass brings the mail."""

    def __init__(self, context: ListenerContext) -> None:
        super().__init__(context)
        self._helo = ""
        self._user = ""  # empty before AUTH
        self._login = ""  # the stored hash of the password at AUTH
        self._extended = False  # the client said EHLO
        self._exchange: auth.Exchange | None = None  # in State.AUTH
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
        several = "\r\n250-".join(lines)
        self._reply(f"250-{several}\r\n250 ENHANCEDSTATUSCODES")

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
        make_exchange = auth.MECHANISMS.get(mechanism.upper())
        if make_exchange is None:
            raise Refused("504 5.5.4 Unrecognized authentication type")
        self._continue_exchange(make_exchange(initial.strip()), None)

    def _auth_answered(self, line: str) -> None:
        exchange, self._exchange = self._exchange, None
        assert exchange is not None
        self._enter(COMMAND)
        self._continue_exchange(exchange, line)

    def _continue_exchange(self, exchange: auth.Exchange, answer: str | None) -> None:
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


# ---- Transactions.


class Session(SecureConnection):
    """The commands of one client."""

    def __init__(self, context: ListenerContext) -> None:
        super().__init__(context)
        self._limits = MailLimits()
        self._claim: SubmissionKeyClaim | None = None  # while its key is looked up
        self._receiver: MessageReceiver | None = None  # from DATA until the message is stored
        self._decoder = DotDecoder()
        self._data_end_s = 0.0
        self._reset_transaction()

    def _reset_transaction(self) -> None:
        self._sender: str | None = None  # None: no transaction is open
        self._tenant = ""
        self._smtputf8 = False
        self._ret = self._envid = ""
        self._options = NO_OPTIONS
        self._excess = 0  # recipients over the limit
        self._recipients: dict[str, Rcpt] = {}

    @property
    def busy(self) -> bool:
        """True if a mail transaction is open."""
        return self._sender is not None

    def _rejected(self, command: str, reply: str, *, user: str = "") -> Refused:
        """The refusal of a command, recorded as a ``rejected`` event. ``user``: a name that AUTH tried."""
        context = self._context
        event = Rejected(
            time_ms=clock.now_ms(), listener=context.name, client_ip=self._client_ip, helo=self._helo,
            user=user or self._user, tenant=self._tenant, command=command, sender=self._sender or "", recipient="",
            code=int(reply[:3]), reply=reply[4:],
        )  # fmt: skip
        if reply == WRONG and not isinstance(reply, RepeatedRefusal):  # their number is limited
            context.rejections.add_password(event)
        else:
            is_known = bool(self._user) or context.trusts(self._client_ip)
            context.rejections.add(event, user=self._user, is_known=is_known)
        return Refused(reply)

    # ---- MAIL, RCPT

    def _mail(self, argument: str) -> None:
        context = self._context
        if not self._helo:
            raise Refused("503 5.5.1 Send EHLO first")
        if self._sender is not None:
            raise Refused("503 5.5.1 A transaction is under way")
        if not self._user and not context.trusts(self._client_ip):
            raise self._rejected("MAIL", "530 5.7.0 Authentication required")
        if context.stopping:
            raise CloseConnection("421 4.3.2 The relay is stopping")
        if self._user and context.login_of(self._user) != self._login:
            raise CloseConnection("421 4.7.0 Your login has changed, authenticate again")
        if context.queue.failure is not None:
            raise self._rejected("MAIL", UNWRITABLE)
        if not context.disk_space.is_sufficient():
            raise self._rejected("MAIL", NO_SPACE)
        settings = context.settings
        mail = parse_mail(
            argument,
            extended=self._extended,
            max_size=settings.max_message_size,
            relaxed=settings.envelope_syntax == "relaxed",
        )
        self._options = of_mail(mail, settings.options, clock.now_ms())
        self._sender, self._smtputf8 = mail.sender, mail.smtputf8
        self._ret, self._envid = mail.ret, mail.envid
        try:
            self._tenant = context.rules.senders.tenant_of(self._user, self._client_ip)
            context.check_sender(self._tenant, self._user, self._client_ip, mail.sender)
        except NotAccepted as exc:
            refused = self._rejected("MAIL", str(exc))
            self._reset_transaction()
            raise refused from exc
        asked = self._limits.recipients_max = None
        if not context.rules.limits.empty:
            client = client_of(self._origin())
            asked = self._limits.ask(context.queue.limits, context.rules.limits, client)
        if asked is None:
            self._look_up_mail()
        else:
            self.wait_for(asked, self._mail_limited, asked)

    def _mail_limited(self, asked: Charge) -> None:
        """Continue MAIL unless a limit is reached."""
        refusal = UNWRITABLE if asked.failure is not None else asked.refusal
        if refusal:
            refused = self._rejected("MAIL", refusal)
            self._reset_transaction()
            raise refused
        self._look_up_mail()

    def _look_up_mail(self) -> None:
        """Reply to MAIL once earlier submissions of its message are known."""
        key = self._envid_key()
        if key:
            lookup = self._context.queue.submission_keys.lookup(key_question(self._origin(), key))
            self.wait_for(lookup, self._mail_looked_up, lookup)
        else:
            self._reply("250 2.1.0 Ok")

    def _mail_looked_up(self, lookup: KeyLookup) -> None:
        """Reply to MAIL, unless its submission key is in use."""
        if lookup.busy or lookup.failure is not None:
            self._reset_transaction()
            raise Refused(UNDER_WAY if lookup.busy else UNWRITABLE)
        self._reply("250 2.1.0 Ok")  # whether it is a repeat, its recipients and its content say

    def _envid_key(self) -> str:
        """The submission key in ENVID; empty without one."""
        prefix = self._context.settings.submission_key.envid_prefix
        if not prefix or not self._envid.startswith(prefix):
            return ""
        return self._envid[len(prefix) :]

    def _rcpt(self, argument: str) -> None:
        if self._sender is None:
            raise Refused("503 5.5.1 Send MAIL first")
        settings = self._context.settings
        rcpt = parse_rcpt(
            argument,
            smtputf8=self._smtputf8,
            extended=self._extended,
            hostname=self.hostname,
            relaxed=settings.envelope_syntax == "relaxed",
        )
        limited, most = self._limits.recipients_max, settings.max_recipients
        if len(self._recipients) >= (most if limited is None else min(most, limited)):
            self._excess += 1
            self._reply("452 4.5.3 Too many recipients")
            if self._excess > most:
                raise CloseConnection
            return
        self._recipients.setdefault(rcpt.address, rcpt)
        self._reply("250 2.1.5 Ok")

    # ---- DATA

    def _data(self, argument: str) -> None:
        if argument:
            raise Refused("501 5.5.4 DATA takes no argument")
        if self._sender is None:
            raise Refused("503 5.5.1 Send MAIL first")
        if not self._recipients:
            raise Refused("554 5.5.1 No valid recipients")
        context, origin = self._context, self._origin()
        claim = SubmissionKeyClaim(
            context.queue.submission_keys, origin, context.settings.submission_key.window
        )
        key = self._envid_key()
        if key:
            refuses_other = ENVID in context.rules.refused_keys
            self._claim, lookup = claim, claim.acquire(key, refuses_other=refuses_other)
            self.wait_for(lookup, self._data_looked_up, claim, lookup)
        else:
            self._begin_data(claim)

    def _data_looked_up(self, claim: SubmissionKeyClaim, lookup: KeyLookup) -> None:
        self._claim = None
        if not claim.acquired:
            raise Refused(UNDER_WAY if lookup.busy else UNWRITABLE)
        self._begin_data(claim)

    def _begin_data(self, claim: SubmissionKeyClaim) -> None:
        assert self._sender is not None
        context = self._context
        envelope = MessageEnvelope(
            sender=self._sender, recipients=list(self._recipients.values()), origin=claim.origin, smtputf8=self._smtputf8,
            ret=self._ret, envid=self._envid, options=self._options,
        )  # fmt: skip
        self._receiver = MessageReceiver(context.queue, context.rules, envelope, claim, context.scanner)
        self._decoder = DotDecoder()
        self._data_end_s = clock.monotonic_s() + context.settings.message_timeout
        self._enter(DATA)
        self._reply("354 End data with <CR><LF>.<CR><LF>")

    def _origin(self) -> Origin:
        return Origin(
            listener=self._context.name, client_ip=self._client_ip, helo=self._helo, user=self._user, protocol=self._protocol(),
            tenant=self._tenant,
        )  # fmt: skip

    def _protocol(self) -> str:
        """The protocol for the Received field: RFC 3848 and RFC 6531 section 4.3."""
        base = "UTF8SMTP" if self._smtputf8 else ("ESMTP" if self._extended else "SMTP")
        return base + ("S" if self._encrypted else "") + ("A" if self._user else "")

    def _message_data(self, block: bytes) -> None:
        """Take a block of the message; bytes after the final dot are the next commands."""
        receiver, decoder = self._receiver, self._decoder
        assert receiver is not None
        data = decoder.feed(block)
        wait_for = receiver.feed(data) if data else None
        if decoder.lookalike:
            receiver.refuse(LOOKALIKE)
        if decoder.done:
            self._enter(COMMAND)
            self._unread += decoder.trailing
            self.wait_for(receiver.finish(), self._message_end, receiver)
            return
        if receiver.over_hard_limit:
            self._rejected("DATA", receiver.refusal)
            raise CloseConnection(receiver.refusal)
        left_s = self._data_end_s - clock.monotonic_s()
        if left_s <= 0:
            raise CloseConnection("421 4.4.2 This message takes too long")
        if left_s < self._timeout_s:
            self._deadline.set(left_s)
        if wait_for is not None:
            self.wait_for(wait_for)  # a failure becomes the refusal at the end of the data

    def _message_end(self, receiver: MessageReceiver) -> None:
        """Reply to a message that is on disk, or refused."""
        self._receiver = None
        if receiver.result is not None:
            self._errors = self._idle_commands = 0
            self._reset_transaction()
            self._reply(receiver.result.reply())
            return
        self._rejected("DATA", receiver.refusal)
        self._reset_transaction()
        self._reply(receiver.refusal)
        if receiver.refusal.startswith("421"):
            raise CloseConnection

    def _abandon(self) -> None:
        """Abort the message that is being received, and release its submission key."""
        super()._abandon()
        if self._claim is not None:
            self._claim.release()
            self._claim = None
        if self._receiver is not None:
            self._receiver.abort()
            self._receiver = None

    # ---- RSET, NOOP, VRFY, HELP, QUIT

    def _rset(self, argument: str) -> None:
        self._count_idle()
        self._reset_transaction()
        self._reply("250 2.0.0 Ok")

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
        self._eof = True  # the client has said so
        raise CloseConnection("221 2.0.0 Bye")

    _commands: ClassVar[dict[str, Callable[[Any, str], None]]] = {
        "HELO": SecureConnection._helo_command,
        "EHLO": SecureConnection._ehlo_command,
        "MAIL": _mail,
        "RCPT": _rcpt,
        "DATA": _data,
        "RSET": _rset,
        "NOOP": _noop,
        "VRFY": _vrfy,
        "HELP": _help,
        "EXPN": _unimplemented,
        "BDAT": _unimplemented,
        "QUIT": _quit,
        "STARTTLS": SecureConnection._starttls,
        "AUTH": SecureConnection._auth,
    }

    def __repr__(self) -> str:
        return f"<session {self._client_ip} {'busy' if self.busy else 'idle'}>"
