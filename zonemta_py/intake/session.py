"""An SMTP session: its commands, and the mail transaction that is open.

Source: RFC 5321 section 4.1, RFC 2920 (pipelining), RFC 3461 (DSN), RFC 6531 (SMTPUTF8).
"""

from collections.abc import Callable
from typing import Any, ClassVar

from zonemta_py.core import clock
from zonemta_py.core.errors import NotAccepted
from zonemta_py.events.schema import Rejected
from zonemta_py.intake.accept_result import UNDER_WAY, UNWRITABLE
from zonemta_py.intake.admission import NO_SPACE
from zonemta_py.intake.authentication import WRONG, RepeatedRefusal
from zonemta_py.intake.command_lines import CloseConnection
from zonemta_py.intake.context import ListenerContext
from zonemta_py.intake.mail_limits import MailLimits
from zonemta_py.intake.message import MessageReceiver
from zonemta_py.intake.message_data import LOOKALIKE
from zonemta_py.intake.message_options import of_mail
from zonemta_py.intake.stamping import MessageEnvelope
from zonemta_py.intake.starttls_auth import SecureConnection
from zonemta_py.intake.state import COMMAND, DATA
from zonemta_py.intake.submission_key import ENVID, SubmissionKeyClaim, key_question
from zonemta_py.queue.format.records import NO_OPTIONS, Origin
from zonemta_py.queue.intake_limits import Charge, client_of
from zonemta_py.queue.submission_keys import KeyLookup
from zonemta_py.smtp.commands import Rcpt, Refused, parse_mail, parse_rcpt
from zonemta_py.smtp.transparency import DotDecoder


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
        """Go on with MAIL unless a limit is reached."""
        refusal = UNWRITABLE if asked.failure is not None else asked.refusal
        if refusal:
            refused = self._rejected("MAIL", refusal)
            self._reset_transaction()
            raise refused
        self._look_up_mail()

    def _look_up_mail(self) -> None:
        """Reply to MAIL once it is known whether its message was submitted before."""
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
            self._sender,
            list(self._recipients.values()),
            claim.origin,
            self._smtputf8,
            self._ret,
            self._envid,
            self._options,
        )
        self._receiver = MessageReceiver(context.queue, context.rules, envelope, claim, context.scanner)
        self._decoder = DotDecoder()
        self._data_end_s = clock.monotonic_s() + context.settings.message_timeout
        self._enter(DATA)
        self._reply("354 End data with <CR><LF>.<CR><LF>")

    def _origin(self) -> Origin:
        return Origin(
            self._context.name, self._client_ip, self._helo, self._user, self._protocol(), self._tenant
        )

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
