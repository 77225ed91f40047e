"""The commands of an SMTP session. Everything it may do is asked of its ``Port``.

Source: RFC 5321 section 4.1, RFC 4954 (AUTH), RFC 3207 (STARTTLS), RFC 2920 (pipelining).
"""

import re
from functools import partial

from zonemta_py.core import clock
from zonemta_py.events.schema import Rejected
from zonemta_py.intake.connection import CloseConnection
from zonemta_py.intake.context import Port
from zonemta_py.intake.idempotency import Claim
from zonemta_py.intake.message import UNDER_WAY, UNWRITABLE, Draft, MessageReceiver
from zonemta_py.intake.starttls_auth import PoliteConnection
from zonemta_py.queue.format.records import Origin
from zonemta_py.queue.idempotency import KeyLookup, digest_of
from zonemta_py.smtp.commands import Rcpt, Refused, parse_mail, parse_rcpt
from zonemta_py.smtp.transparency import DotDecoder

_HOST = re.compile(r"[\x21-\x7e\x80-\ud7ff\ue000-\U0010ffff]{1,255}\Z")  # no surrogates: valid UTF-8


class Session(PoliteConnection):
    """A conversation with one client."""

    def __init__(self, port: Port) -> None:
        super().__init__(port)
        self._helo = ""
        self._claim: Claim | None = None  # while it is asked for
        self._ingest: MessageReceiver | None = None  # while a message comes in, and until it is stored
        self._set_rset_state()

    def _set_rset_state(self) -> None:
        self._sender: str | None = None
        self._smtputf8 = False
        self._ret = self._envid = ""
        self._excess = 0  # recipients over the limit
        self._recipients: dict[str, Rcpt] = {}

    @property
    def busy(self) -> bool:
        """Whether a transaction is under way."""
        return self._sender is not None

    def _rejected(self, command: str, reply: str, recipient: str = "") -> Refused:
        """A refusal that an operator will ask about goes into the ledger."""
        self._port.queue.record(
            Rejected(
                time_ms=clock.now_ms(),
                listener=self._port.name,
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
        lines = [
            self.hostname,
            "PIPELINING",
            f"SIZE {settings.max_message_size}",
            "8BITMIME",
            "SMTPUTF8",
            "DSN",
        ]
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
        self._count_idle()
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
            raise CloseConnection
        if self._port.queue.failure is not None:
            raise self._rejected("MAIL", UNWRITABLE)
        if not self._port.disk_room:
            raise self._rejected("MAIL", "452 4.3.1 Not enough disk space, try again later")
        mail = parse_mail(
            argument, extended=self._extended, max_size=self._port.settings.max_message_size
        )
        self._sender, self._smtputf8 = mail.sender, mail.smtputf8
        self._ret, self._envid = mail.ret, mail.envid
        key = self._key()
        if key:
            lookup = self._port.queue.idempotency_keys.lookup(digest_of(self._owner, key))
            self.when(lookup, self._looked, lookup)
        else:
            self._reply("250 2.1.0 Ok")

    def _looked(self, lookup: KeyLookup) -> None:
        """A client that waits hears of its submission key at once."""
        if lookup.busy or lookup.failure is not None:
            self._set_rset_state()
            raise Refused(UNDER_WAY if lookup.busy else UNWRITABLE)
        self._reply("250 2.1.0 Ok" + (f", duplicate of {lookup.known.message}" if lookup.known else ""))

    @property
    def _owner(self) -> str:
        """Whose submission keys count: the user's, or the client address's when it needs no AUTH."""
        return self._user or self._client_ip

    def _key(self) -> str:
        """The submission key in ENVID; empty without one."""
        prefix = self._port.settings.submission_key.envid_prefix
        if not prefix or not self._envid.startswith(prefix):
            return ""
        return self._envid[len(prefix) :]

    def _rcpt(self, argument: str) -> None:
        if self._sender is None:
            raise Refused("503 5.5.1 Send MAIL first")
        rcpt = parse_rcpt(
            argument, smtputf8=self._smtputf8, extended=self._extended, hostname=self.hostname
        )
        if len(self._recipients) >= self._port.settings.max_recipients:
            self._excess += 1
            self._reply("452 4.5.3 Too many recipients")
            if self._excess > self._port.settings.max_recipients:
                raise CloseConnection
            return
        self._recipients.setdefault(rcpt.address, rcpt)
        self._reply("250 2.1.5 Ok")

    def _data(self, argument: str) -> None:
        if argument:
            raise Refused("501 5.5.4 DATA takes no argument")
        if self._sender is None:
            raise Refused("503 5.5.1 Send MAIL first")
        if not self._recipients:
            raise Refused("554 5.5.1 No valid recipients")
        claim = Claim(
            self._port.queue.idempotency_keys, self._owner, self._port.settings.submission_key.window
        )
        key = self._key()
        if key:
            self._claim, lookup = claim, claim.acquire(key)
            self.when(lookup, self._claimed, claim, lookup)
        else:
            self._begin(claim)

    def _claimed(self, claim: Claim, lookup: KeyLookup) -> None:
        self._claim = None
        if not claim.taken:
            raise Refused(UNDER_WAY if lookup.busy else UNWRITABLE)
        self._begin(claim)

    def _begin(self, claim: Claim) -> None:
        """Ask for the message."""
        assert self._sender is not None
        self._ingest = MessageReceiver(
            self._port.queue, self._port.router, self._draft(self._sender), claim
        )
        self._taker = partial(self._receive, self._ingest, DotDecoder())
        self._data_end_s = clock.monotonic_s() + self._port.settings.message_timeout
        self._reply("354 End data with <CR><LF>.<CR><LF>")

    def _receive(self, ingest: MessageReceiver, decoder: DotDecoder, block: bytes) -> None:
        """Take a block of the message. What follows the final dot are the next commands."""
        data = decoder.feed(block)
        ahead = ingest.feed(data) if data else None
        if decoder.done:
            self._taker = None
            self._unread += decoder.rest
            ingest.finish()
            self.when(ingest, self._answer, ingest)
            return
        if ingest.hopeless:
            self._rejected("DATA", ingest.refusal)
            self._reply(ingest.refusal)
            raise CloseConnection
        left_s = self._data_end_s - clock.monotonic_s()
        if left_s <= 0:
            self._reply("421 4.4.2 This message takes too long")
            raise CloseConnection
        if left_s < self._timeout_s:
            self._deadline.set(left_s)
        if ahead is not None:
            self.when(ahead, self._kept)

    def _kept(self) -> None:
        """Some of the body is on disk; what could not be written shows at its end."""

    def _answer(self, ingest: MessageReceiver) -> None:
        if ingest.refusal:
            self._rejected("DATA", ingest.refusal)
        else:
            self._errors = self._idle_commands = 0
        self._ingest = None
        self._set_rset_state()
        self._reply(ingest.refusal or ingest.reply)
        if ingest.refusal.startswith("421"):
            raise CloseConnection

    def _abandon(self) -> None:
        """The client has left: what it began leaves nothing behind."""
        self._taker = None
        if self._claim is not None:
            self._claim.give_up()
            self._claim = None
        if self._ingest is not None:
            self._ingest.abort()
            self._ingest = None

    def _protocol(self) -> str:
        """The name of what is spoken here, as RFC 3848 and 6531 have it."""
        base = "UTF8SMTP" if self._smtputf8 else ("ESMTP" if self._extended else "SMTP")
        return base + ("S" if self._secure else "") + ("A" if self._user else "")

    def _draft(self, sender: str) -> Draft:
        settings = self._port.settings
        return Draft(
            sender=sender,
            recipients=list(self._recipients.values()),
            ret=self._ret,
            envid=self._envid,
            smtputf8=self._smtputf8,
            origin=Origin(self._port.name, self._client_ip, self._helo, self._user, self._protocol()),
            trusted_routing=True,
            hostname=self.hostname,
            max_size=settings.max_message_size,
            max_hops=settings.max_hops,
            key_headers=settings.submission_key.headers,
            dkim_domains=self._port.dkim_domains,
            policies=self._port.envelope_policies,
        )

    def _rset(self, argument: str) -> None:
        self._count_idle()
        self._set_rset_state()
        self._reply("250 2.0.0 Ok")

    def _start_again(self) -> None:
        """Under TLS, all that was said before is forgotten."""
        super()._start_again()
        self._helo = ""
        self._set_rset_state()

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
