"""Transactions on an open session: pipelined commands, streamed bodies.

The session takes over the connection after aiosmtplib has connected, greeted, encrypted and authenticated (decision 3).
``Dialogue`` has replies, time limits and flow control; ``SmtpSession`` the transactions; ``LmtpSession`` a reply for each recipient.

States::

    idle ─ transact ─▶ envelope ─ 354 ─▶ body ─▶ final dot ─▶ idle
      │                   └── refused: dirty, RSET before the next transaction
      └─ QUIT, 421, an error or a time limit ─▶ not usable; lost once the connection has ended

Invariants:

- Replies belong to commands in their order. One that arrives before it is awaited is kept; more than ``_replies_owed`` end the
  session, for a peer that answers what was not asked cannot be trusted to the message.
- The final dot is sent only after ``before_dot`` and when no reply has arrived during the body. An unfinished message is aborted,
  so that it does not look finished.
- Before the final dot a lost connection raises SessionLost, or is the answer of recipients when the peer has refused something
  before: the peer does not have the message. After the final dot the result is ``uncertain``.
- Each recipient has an answer with its deciding phase, or None: send it in the next transaction.
- ``usable`` never becomes True again; the pool closes such a session.

Callers: ``delivery.smtp_agent``, ``submit`` and the pipeline's ``send`` call ``transact``; ``delivery.session_pool`` keeps and closes.

Example: MAIL, two RCPT and DATA leave in one write; the peer answers 250, 250, 550, 354. The body and the final dot follow; the
250 to the dot is the answer of the first recipient, the 550 with ``Phase.RCPT`` that of the second.

Source: RFC 5321 sections 3.3, 4.1.1, 4.5.3.2; RFC 2920 (pipelining); RFC 2033 (LMTP).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from zonemta_py.config.zones import Timeouts
from zonemta_py.core import clock
from zonemta_py.core.codec import Struct
from zonemta_py.core.errors import SessionLost
from zonemta_py.smtp.reply import Reply, ReplyReader
from zonemta_py.smtp.transparency import DotEncoder
from zonemta_py.smtp.verdict import Phase, limits_recipients, may_limit_recipients
from zonemta_py.transports.tracing import SessionTrace

# ---- The dialogue: replies in order, time limits, flow control.

JOINED_MAX = 16_384  # bytes: above it a copy costs more than a list of buffers


class Dialogue(asyncio.Protocol):
    """Writes commands and reads replies. ``usable``: another transaction may follow on this connection. ``lost_tls``: it is in clear text
    because TLS failed. ``withdrawn``: extensions that the peer offers and whose parameters it refuses.

    ``trace``: of the present transaction, if it is traced.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        extensions: Mapping[str, str],
        timeouts: Timeouts,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._extensions = extensions
        self._timeouts = timeouts
        self._reader = ReplyReader()
        self._replies: deque[Reply] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None  # while writing is paused
        self._lost: SessionLost | None = None
        self._deadline = clock.Deadline(loop, self._timed_out)
        self._replies_owed = 0  # limit of replies that are not awaited yet
        self.usable = True
        self.lost_tls = False
        self.withdrawn: frozenset[str] = frozenset()
        self.trace: SessionTrace | None = None
        self.messages = 0
        self.secure = transport.get_extra_info("sslcontext") is not None
        limit = extensions.get("size", "")
        self.size_max = int(limit) if limit.isascii() and limit.isdigit() and len(limit) < 20 else 0

    def offers(self, extension: str) -> bool:
        """True if the peer announced ``extension`` (lower case)."""
        return extension in self._extensions

    def withdraw(self, extensions: Collection[str]) -> None:
        """Stop the use of ``extensions`` (lower case), as if the peer had not announced them."""
        offered = self._extensions
        self.withdrawn |= offered.keys() & extensions
        self._extensions = {name: offered[name] for name in offered if name not in extensions}

    def parameter(self, extension: str) -> str:
        """The parameter of ``extension`` (lower case) in the peer's announcement; empty without it."""
        return self._extensions.get(extension, "")

    def data_received(self, data: bytes) -> None:
        """Read replies; more than ``_replies_owed`` end the session."""
        if self.trace is not None:
            self.trace.server(data)
        try:
            self._reader.feed(data, self._replies)
        except SessionLost as exc:
            self._end(exc)
            self._transport.abort()
            return
        if len(self._replies) > self._replies_owed:
            self._end(SessionLost("the peer sends replies without commands"))
            self._transport.abort()
            return
        if self._writable is not None and not self._writable.done() and self._replies:
            self._writable.set_result(None)  # a reply during the body: the writer must read it
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End every wait with SessionLost."""
        self._end(SessionLost(f"connection lost: {exc}" if exc else "the peer closed the connection"))

    def pause_writing(self) -> None:
        """Let ``_drained`` wait: the write buffer is full."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """End the wait of ``_drained``: the write buffer has room."""
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _timed_out(self) -> None:
        self._end(SessionLost("timed out waiting for the peer"))
        self._transport.abort()

    def _end(self, reason: SessionLost) -> None:
        self.usable = False
        if self._lost is None:
            self._lost = reason
            if self.trace is not None:
                self.trace.note(str(reason))
        self._deadline.cancel()
        for waiter in (self._waiter, self._writable):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Send QUIT if the session is usable, and close without waiting for the reply."""
        self._deadline.cancel()
        if self.usable and self._lost is None and not self._transport.get_write_buffer_size():
            if self.trace is not None:
                self.trace.client(b"QUIT\r\n")
            self._transport.write(b"QUIT\r\n")
            self._transport.close()
        else:
            self._transport.abort()  # a peer that does not read could delay a close forever
        self.usable = False

    async def quit(self, wait_s: float) -> None:
        """Send QUIT, and wait up to ``wait_s`` until the peer has closed: it counts the session no more then."""
        try:
            if self.usable and self._lost is None:
                self.usable, self._replies_owed = False, 1
                async with asyncio.timeout(wait_s):
                    self._write(b"QUIT\r\n")
                    await self._reply(wait_s)
                    while self._lost is None:
                        self._waiter = self._loop.create_future()
                        await self._waiter
        except (SessionLost, TimeoutError):
            pass
        finally:
            self._deadline.cancel()
            self._transport.abort()

    def abort(self) -> None:
        """Close at once, so that an unfinished message does not look finished."""
        self._end(SessionLost("aborted"))
        self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._lost is not None:
            raise self._lost
        if self.trace is not None:
            self.trace.client(data)
        self._transport.write(data)

    def _write_all(self, parts: list[bytes]) -> None:
        """Write ``parts``: large ones without a copy that joins them."""
        if len(parts[0]) < JOINED_MAX and len(parts) < 3:
            self._write(b"".join(parts))
            return
        if self._lost is not None:
            raise self._lost
        if self.trace is not None:
            for part in parts:
                self.trace.client(part)
        self._transport.writelines(parts)

    async def _drained(self) -> None:
        """Wait until the write buffer has room, at most ``timeouts.data``. Raises SessionLost."""
        if self._writable is not None:
            self._deadline.set(self._timeouts.data)
            await self._writable
            self._deadline.clear()
        else:
            await asyncio.sleep(0)  # a body from memory must not starve the other sessions
        if self._lost is not None and not self._replies:
            raise self._lost

    async def _reply(self, timeout_s: float) -> Reply:
        """The next reply, in order. Raises SessionLost."""
        if not self._replies:
            self._deadline.set(timeout_s)
            while not self._replies:
                if self._lost is not None:
                    raise self._lost
                self._waiter = self._loop.create_future()
                await self._waiter
            self._deadline.clear()
        return self._next()

    def _next(self) -> Reply:
        """The next reply, which has arrived."""
        reply = self._replies.popleft()
        if reply.code == 421:
            self.usable = False
        return reply


# ---- Transactions.

WRITE_AT_ONCE = 131_072  # bytes: a smaller message is sent in one write
SPARE_REPLIES = 4  # replies of a transaction other than to RCPT: RSET, MAIL, DATA, the final dot

_Answers = list[tuple[Phase, Reply] | None]  # by recipient


class DsnOptions(Struct, frozen=True, array_like=True):
    """Parameters of MAIL and of each RCPT, each empty or with a leading space. Source: RFC 3461."""

    mail: str
    rcpts: Sequence[str]


class Transaction(Struct, frozen=True):
    """A message to send. ``header`` ends with CRLF, ``body`` are the bytes after the empty line.

    ``size`` is announced, in bytes. ``dsn`` is set only for a peer that offers DSN.
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
class TransactionResult:
    """The replies to a transaction. ``answers`` has the deciding phase and reply of each recipient.

    An answer None: the peer accepts no more recipients in one transaction; send this one in the next.
    ``uncertain``: the final dot was sent and no reply was received.
    """

    answers: _Answers = field(default_factory=list)
    uncertain: bool = False


class SmtpSession(Dialogue):
    """An open session. ``recipients_max`` is the limit per transaction that the replies to RCPT revealed.

    ``broke_pipelining``: it was lost, without 421, between the replies to pipelined commands.
    """

    broke_pipelining = False
    recipients_max: int | None = None
    delivers = False  # a positive answer means delivery, and not only responsibility
    _dirty = False  # the peer holds a transaction that must be reset

    async def transact(
        self, mail: Transaction, before_dot: Awaitable[None] | None = None
    ) -> TransactionResult:
        """Send ``mail``; ``before_dot``, if given, is awaited before the final dot is sent.

        Raises SessionLost when the connection fails before the final dot. Exceptions of the body's
        iterator and of ``before_dot`` abort the connection and propagate.
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

    async def _transact(
        self, mail: Transaction, before_dot: Awaitable[None] | None
    ) -> TransactionResult:
        answers, accepted, data = await self._envelope(mail)
        result = TransactionResult(answers)
        if data is None:
            return result
        if not accepted:
            if data.code == 354:
                # No recipient, but the peer expects a body: end it at once, use the session no more.
                self._write(b".\r\n")
                self.usable = False
                try:
                    await self._reply(self._timeouts.dot)
                except SessionLost:
                    pass  # the replies to RCPT decide
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
        """The groups of recipients that share a reply to the final dot."""
        return [accepted]

    @staticmethod
    def _answer(answers: _Answers, accepted: Sequence[int], phase: Phase, reply: Reply) -> None:
        for index in accepted:
            answers[index] = (phase, reply)

    async def _envelope(self, mail: Transaction) -> tuple[_Answers, list[int], Reply | None]:
        """Send MAIL, RCPT and DATA. Returns answers, accepted indexes and the reply to DATA, None if not sent."""
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
            # One that has refused something may close the connection whatever else it was sent.
            self.broke_pipelining = (
                pipelined and bool(replies) and all(each.completed for each in replies)
            )
            return self._cut_short(mail, replies, exc), [], None

    def _cut_short(self, mail: Transaction, replies: Sequence[Reply], lost: SessionLost) -> _Answers:
        """The answers when the connection is lost after ``replies``. Raises ``lost`` if all of those are 2xx.

        A peer that takes some recipients and then answers 421 takes no more than those.
        """
        self.usable = False
        if all(reply.completed for reply in replies):
            raise lost
        answers, accepted = self._judge(len(mail.recipients), replies)
        if accepted and replies[-1].code == 421:
            self.recipients_max = len(accepted)
        default = replies[-1] if replies[-1].code == 421 else Reply(0, "4.4.2", str(lost))
        answers += [None] * (len(mail.recipients) - len(answers))
        return [answer or (Phase.RCPT, default) for answer in answers]

    def _judge(self, count: int, replies: Sequence[Reply]) -> tuple[_Answers, list[int]]:
        mail, *rcpts = replies
        if not mail.completed:
            return [(Phase.MAIL, mail)] * count, []
        answers: _Answers = []
        accepted: list[int] = []
        for index, reply in enumerate(rcpts):
            if reply.completed:
                accepted.append(index)
                answers.append(None)
            elif accepted and reply.code != 421 and limits_recipients(reply):
                self.recipients_max = len(accepted)
                answers.append(None)
            else:
                answers.append((Phase.RCPT, reply))
        # A bare 452 before an accepted recipient is about a mailbox. After the last one it may be the limit: all
        # of these are tried again in another transaction, and several of them are taken as the limit.
        unclear = [
            index
            for index, reply in enumerate(rcpts)
            if accepted and index > accepted[-1] and may_limit_recipients(reply)
        ]
        for index in unclear:
            answers[index] = None
        if len(unclear) > 1:
            self.recipients_max = len(accepted)
        return answers, accepted

    def _mail_command(self, mail: Transaction) -> bytes:
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

    async def _body(self, mail: Transaction, before_dot: Awaitable[None] | None) -> Reply | None:
        """Send the message and the final dot. Returns a reply that arrived before the dot, which is not sent then."""
        encoder = DotEncoder()
        if isinstance(mail.body, bytes):
            unsent = [encoder.feed(b"".join((mail.header, b"\r\n", mail.body)))]
        else:
            unsent = [encoder.feed(mail.header + b"\r\n")]
            size_bytes = len(unsent[0])
            async for chunk in mail.body:
                if size_bytes > WRITE_AT_ONCE:
                    self._write_all(unsent)
                    unsent, size_bytes = [], 0
                    await self._drained()
                    if self._replies:
                        return self._replies.popleft()
                unsent.append(encoder.feed(chunk))
                size_bytes += len(chunk)
        unsent.append(encoder.finish())
        if before_dot is not None:
            await before_dot
        if self._replies:
            return self._replies.popleft()
        self._write_all(unsent)
        return None


class LmtpSession(SmtpSession):
    """A session in LMTP, where each recipient has a reply to the final dot. Source: RFC 2033 section 4.2."""

    delivers = True

    def _answered_together(self, accepted: list[int]) -> list[list[int]]:
        return [[index] for index in accepted]


def _rcpt_commands(mail: Transaction) -> list[bytes]:
    if mail.dsn is None:
        return [b"RCPT TO:<%b>\r\n" % address.encode() for address in mail.recipients]
    pairs = zip(mail.recipients, mail.dsn.rcpts, strict=False)
    return [f"RCPT TO:<{address}>{options}\r\n".encode() for address, options in pairs]
