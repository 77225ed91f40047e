"""The dialogue of a session that is open: transactions, pipelined, bodies streamed.

It takes over the connection after aiosmtplib has connected, greeted, encrypted and authenticated
(decision 3). A reply that comes in the middle of a body is read and not lost.

Source: RFC 5321 sections 3.3, 4.1.1, 4.5.3.2; RFC 2920 (pipelining).
"""

from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field

from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import SessionLost
from zonemta_py.smtp.classify import Phase, limits_recipients
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.transparency import DotEncoder
from zonemta_py.transports.dialogue import Dialogue

WRITE_AT_ONCE = 131_072  # a small message goes out in one write
SPARE_REPLIES = 4  # a transaction's replies beside those to RCPT: RSET, MAIL, DATA, the final dot


class DsnOptions(Struct, frozen=True, array_like=True):
    """Parameters of RFC 3461, each with a space in front or empty: of MAIL, and of every RCPT."""

    mail: str
    rcpts: Sequence[str]


class Mail(Struct, frozen=True):
    """One transaction to be. ``body`` is what follows the empty line that ends ``header``.

    ``dsn`` only for a peer that offers it.
    """

    sender: str
    recipients: Sequence[str]
    header: bytes
    body: bytes | AsyncIterator[bytes]
    size: int
    eight_bit: bool
    smtputf8: bool
    dsn: DsnOptions | None = None


@dataclass(slots=True)
class Result:
    """What the peer said. ``answers`` has one entry per recipient: the phase and reply that settle it.

    None: the peer takes no more recipients in one transaction, try this one in the next.
    ``uncertain``: the final dot went out and no answer came back.
    """

    answers: list[tuple[Phase, Reply] | None] = field(default_factory=list)
    uncertain: bool = False


class SmtpSession(Dialogue):
    """An open session, for one transaction after another. ``recipients_max`` is learned from a 452."""

    recipients_max: int | None = None
    _dirty = False  # the peer holds a transaction that must be reset

    async def transact(self, mail: Mail, before_dot: Awaitable[None] | None = None) -> Result:
        """Send ``mail``; ``before_dot``, if given, is awaited before its final dot goes out.

        Raises SessionLost when the connection fails before the final dot. Whatever the iterator of
        the body or ``before_dot`` raises is raised here too, with the connection aborted.
        """
        self._replies_owed = 2 * len(mail.recipients) + SPARE_REPLIES
        self.messages += 1
        try:
            return await self._transact(mail, before_dot)
        except BaseException:
            self.abort()
            raise
        finally:
            self._replies_owed = 0
            self._deadline.clear()
            if self._replies or self._reader.midway:
                self.usable = False

    async def _transact(self, mail: Mail, before_dot: Awaitable[None] | None) -> Result:
        answers, accepted, data = await self._envelope(mail)
        result = Result(answers)
        if data is None:
            return result
        if not accepted:
            if data.code == 354:
                # Nobody is to get it, yet the peer wants a body: an empty one, and no more trust.
                self._write(b".\r\n")
                self.usable = False
                try:
                    await self._reply(self._timeouts.dot)
                except SessionLost:
                    pass  # what it said of the recipients stands
            return result
        if data.code != 354:
            self._dirty = True
            if data.positive:
                raise SessionLost(f"unexpected answer to DATA: {data}")
            self._answer(answers, accepted, Phase.DATA, data)
            return result
        self._dirty = False
        early = await self._body(mail, before_dot)
        if early is not None:
            self.usable = False
            self._answer(answers, accepted, Phase.DATA, early)
            return result
        for together in self._answered_together(accepted):
            try:
                final = self._next() if self._replies else await self._reply(self._timeouts.dot)
            except SessionLost as exc:
                result.uncertain = True
                final = Reply(0, "4.4.2", f"no answer to the final dot: {exc}")
            self._answer(answers, together, Phase.DOT, final)
        return result

    def _answered_together(self, accepted: list[int]) -> list[list[int]]:
        """Which recipients share a reply to the final dot."""
        return [accepted]

    @staticmethod
    def _answer(
        answers: list[tuple[Phase, Reply] | None], accepted: Sequence[int], phase: Phase, reply: Reply
    ) -> None:
        for index in accepted:
            answers[index] = (phase, reply)

    async def _envelope(
        self, mail: Mail
    ) -> tuple[list[tuple[Phase, Reply] | None], list[int], Reply | None]:
        """MAIL, RCPT and DATA. Returns answers so far, accepted indexes, and the answer to DATA.

        No answer to DATA: it was not sent.
        """
        commands = [self._mail_command(mail), *_rcpt_commands(mail)]
        reset = [b"RSET\r\n"] if self._dirty else []
        pipelined = self.offers("pipelining")
        if pipelined:
            self._write(b"".join([*reset, *commands, b"DATA\r\n"]))
        if reset:
            if not pipelined:
                self._write(reset[0])
            await self._reply(self._timeouts.command)
        self._dirty = True
        replies: list[Reply] = []
        try:
            for command in commands:
                if not pipelined:
                    self._write(command)
                replies.append(
                    self._next() if self._replies else await self._reply(self._timeouts.command)
                )
                if not pipelined and not replies[0].completed:
                    break
            answers, accepted = self._judge(len(mail.recipients), replies)
            if not pipelined:
                if not accepted:
                    return answers, accepted, None
                self._write(b"DATA\r\n")
            data = self._next() if self._replies else await self._reply(self._timeouts.command)
            return answers, accepted, data
        except SessionLost as exc:
            return self._cut_short(mail, replies, exc), [], None

    def _cut_short(
        self, mail: Mail, replies: Sequence[Reply], lost: SessionLost
    ) -> list[tuple[Phase, Reply] | None]:
        """What the peer said before it left counts. Raises ``lost`` when it said nothing of weight."""
        self.usable = False
        if all(reply.completed for reply in replies):
            raise lost
        answers, _ = self._judge(len(mail.recipients), replies)
        rest = replies[-1] if replies[-1].code == 421 else Reply(0, "4.4.2", str(lost))
        answers += [None] * (len(mail.recipients) - len(answers))
        return [answer or (Phase.RCPT, rest) for answer in answers]

    def _judge(
        self, count: int, replies: Sequence[Reply]
    ) -> tuple[list[tuple[Phase, Reply] | None], list[int]]:
        mail, *rcpts = replies
        if not mail.completed:
            return [(Phase.MAIL, mail)] * count, []
        answers: list[tuple[Phase, Reply] | None] = []
        accepted: list[int] = []
        for index, reply in enumerate(rcpts):
            if reply.completed:
                accepted.append(index)
                answers.append(None)
            elif accepted and limits_recipients(reply):
                self.recipients_max = max(1, len(accepted))
                answers.append(None)
            else:
                answers.append((Phase.RCPT, reply))
        return answers, accepted

    def _mail_command(self, mail: Mail) -> bytes:
        parameters = ""
        if self.offers("size"):
            parameters += f" SIZE={mail.size}"
        if mail.eight_bit and self.offers("8bitmime"):
            parameters += " BODY=8BITMIME"
        if mail.smtputf8 and self.offers("smtputf8"):
            parameters += " SMTPUTF8"
        if mail.dsn is not None:
            parameters += mail.dsn.mail
        return f"MAIL FROM:<{mail.sender}>{parameters}\r\n".encode()

    async def _body(self, mail: Mail, before_dot: Awaitable[None] | None) -> Reply | None:
        """Send the message and its final dot; an answer that comes before the dot ends it."""
        encoder = DotEncoder()
        if isinstance(mail.body, bytes):
            rest = encoder.feed(b"".join((mail.header, b"\r\n", mail.body))) + encoder.finish()
        else:
            rest = encoder.feed(mail.header + b"\r\n")
            async for chunk in mail.body:
                if len(rest) > WRITE_AT_ONCE:
                    self._write(rest)
                    rest = b""
                    await self._drained()
                    if self._replies:
                        return self._replies.popleft()
                rest += encoder.feed(chunk)
            rest += encoder.finish()
        if before_dot is not None:
            await before_dot
        if self._replies:
            return self._replies.popleft()
        self._write(rest)
        return None


class LmtpSession(SmtpSession):
    """The same in LMTP: the final dot is answered once for each recipient (RFC 2033 section 4.2)."""

    def _answered_together(self, accepted: list[int]) -> list[list[int]]:
        return [[index] for index in accepted]


def _rcpt_commands(mail: Mail) -> list[bytes]:
    if mail.dsn is None:
        return [b"RCPT TO:<%b>\r\n" % address.encode() for address in mail.recipients]
    pairs = zip(mail.recipients, mail.dsn.rcpts, strict=False)
    return [f"RCPT TO:<{address}>{options}\r\n".encode() for address, options in pairs]
