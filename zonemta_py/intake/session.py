"""An SMTP session: its commands, and the mail transaction that is open.

Source: RFC 5321 section 4.1, RFC 2920 (pipelining), RFC 3461 (DSN), RFC 6531 (SMTPUTF8).
"""

import re
from collections.abc import Callable
from typing import Any, ClassVar

from zonemta_py.core import clock
from zonemta_py.core.errors import NotAccepted
from zonemta_py.events.schema import Rejected
from zonemta_py.intake.admission import NO_SPACE
from zonemta_py.intake.command_lines import CloseConnection
from zonemta_py.intake.context import ListenerContext
from zonemta_py.intake.idempotency import IdempotencyClaim
from zonemta_py.intake.message import UNDER_WAY, UNWRITABLE, MessageReceiver
from zonemta_py.intake.message_options import latest_release, of_mail
from zonemta_py.intake.stamping import MessageEnvelope
from zonemta_py.intake.starttls_auth import SecureConnection
from zonemta_py.intake.state import COMMAND, DATA
from zonemta_py.queue.format.records import NO_OPTIONS, Origin
from zonemta_py.queue.idempotency import KeyLookup, digest_of
from zonemta_py.smtp.commands import Rcpt, Refused, parse_mail, parse_rcpt
from zonemta_py.smtp.transparency import DotDecoder

IDLE_COMMANDS_MAX = 100  # NOOP, RSET and the like between two messages

_HOST = re.compile(r"[\x21-\x7e\x80-\ud7ff\ue000-\U0010ffff]{1,255}\Z")  # no surrogates: valid UTF-8


class Session(SecureConnection):
    """The commands of one client."""

    def __init__(self, context: ListenerContext) -> None:
        super().__init__(context)
        self._helo = ""
        self._idle_commands = 0  # since the last message
        self._claim: IdempotencyClaim | None = None  # while its key is looked up
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
        """Whether a mail transaction is open."""
        return self._sender is not None

    def _rejected(self, command: str, reply: str, *, user: str = "") -> Refused:
        """The refusal of a command, recorded as a ``rejected`` event. ``user``: a name that AUTH tried."""
        context = self._context
        event = Rejected(
            time_ms=clock.now_ms(), listener=context.name, client_ip=self._client_ip, helo=self._helo,
            user=user or self._user, tenant=self._tenant, command=command, sender=self._sender or "", recipient="",
            code=int(reply[:3]), reply=reply[4:],
        )  # fmt: skip
        stranger = not self._user and not context.trusts(self._client_ip)
        # The number of wrong passwords is limited; each has its name in the event log.
        context.rejections.add(event, counted=stranger and not reply.startswith("535"))
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
        if self._user or self._context.trusts(self._client_ip):
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

    def _reset_session(self) -> None:
        """Forget what the client said before TLS."""
        super()._reset_session()
        self._helo = ""
        self._reset_transaction()

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
        if context.queue.failure is not None:
            raise self._rejected("MAIL", UNWRITABLE)
        if not context.disk_space.is_sufficient():
            raise self._rejected("MAIL", NO_SPACE)
        mail = parse_mail(argument, extended=self._extended, max_size=context.settings.max_message_size)
        self._options = of_mail(mail, context.settings.options, clock.now_ms())
        self._sender, self._smtputf8 = mail.sender, mail.smtputf8
        self._ret, self._envid = mail.ret, mail.envid
        try:
            self._tenant = context.rules.senders.tenant_of(self._user, self._client_ip)
            context.check_sender(self._tenant, self._user, self._client_ip, mail.sender)
        except NotAccepted as exc:
            refused = self._rejected("MAIL", str(exc))
            self._reset_transaction()
            raise refused from exc
        key = self._envid_key()
        if key:
            lookup = context.queue.idempotency_keys.lookup(digest_of(self._submitter, key))
            self.wait_for(lookup, self._mail_looked_up, lookup)
        else:
            self._reply("250 2.1.0 Ok")

    def _mail_looked_up(self, lookup: KeyLookup) -> None:
        """Reply to MAIL with what is known of its submission key."""
        if lookup.busy or lookup.failure is not None:
            self._reset_transaction()
            raise Refused(UNDER_WAY if lookup.busy else UNWRITABLE)
        self._reply("250 2.1.0 Ok" + (f", duplicate of {lookup.known.message}" if lookup.known else ""))

    @property
    def _submitter(self) -> str:
        """The owner of submission keys: the user, or the client's address without AUTH."""
        return self._user or self._client_ip

    def _envid_key(self) -> str:
        """The submission key in ENVID; empty without one."""
        prefix = self._context.settings.submission_key.envid_prefix
        if not prefix or not self._envid.startswith(prefix):
            return ""
        return self._envid[len(prefix) :]

    def _rcpt(self, argument: str) -> None:
        if self._sender is None:
            raise Refused("503 5.5.1 Send MAIL first")
        rcpt = parse_rcpt(
            argument, smtputf8=self._smtputf8, extended=self._extended, hostname=self.hostname
        )
        if len(self._recipients) >= self._context.settings.max_recipients:
            self._excess += 1
            self._reply("452 4.5.3 Too many recipients")
            if self._excess > self._context.settings.max_recipients:
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
        context = self._context
        claim = IdempotencyClaim(
            context.queue.idempotency_keys, self._submitter, context.settings.submission_key.window
        )
        key = self._envid_key()
        if key:
            self._claim, lookup = claim, claim.acquire(key)
            self.wait_for(lookup, self._data_looked_up, claim, lookup)
        else:
            self._begin_data(claim)

    def _data_looked_up(self, claim: IdempotencyClaim, lookup: KeyLookup) -> None:
        self._claim = None
        if not claim.acquired:
            raise Refused(UNDER_WAY if lookup.busy else UNWRITABLE)
        self._begin_data(claim)

    def _begin_data(self, claim: IdempotencyClaim) -> None:
        assert self._sender is not None
        context = self._context
        envelope = MessageEnvelope(
            self._sender,
            list(self._recipients.values()),
            Origin(
                context.name, self._client_ip, self._helo, self._user, self._protocol(), self._tenant
            ),
            self._smtputf8,
            self._ret,
            self._envid,
            self._options,
        )
        self._receiver = MessageReceiver(context.queue, context.rules, envelope, claim)
        self._decoder = DotDecoder()
        self._data_end_s = clock.monotonic_s() + context.settings.message_timeout
        self._enter(DATA)
        self._reply("354 End data with <CR><LF>.<CR><LF>")

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
        """The message is on disk, or refused."""
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
        if self._claim is not None:
            self._claim.release()
            self._claim = None
        if self._receiver is not None:
            self._receiver.abort()
            self._receiver = None

    # ---- RSET, NOOP, VRFY, HELP, QUIT

    def _count_idle(self) -> None:
        """Limit the commands without a message, with which a client could hold a session forever."""
        self._idle_commands += 1
        if self._idle_commands > IDLE_COMMANDS_MAX:
            raise CloseConnection("421 4.7.0 Too many commands without a message")

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
        "HELO": _helo_command,
        "EHLO": _ehlo_command,
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
