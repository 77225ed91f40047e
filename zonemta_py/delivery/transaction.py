"""The forms of a message that sessions with different extensions need, and one transaction on a session."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial

from zonemta_py.core.codec import replace
from zonemta_py.core.errors import QueueCorrupt
from zonemta_py.delivery.dkim import Signer
from zonemta_py.delivery.request import DeliveryRequest, RequestContext
from zonemta_py.smtp.address import needs_smtputf8
from zonemta_py.smtp.classify import PARAMETERS, Phase, refused_extensions
from zonemta_py.smtp.dkim import BodyHash
from zonemta_py.smtp.reply import Reply
from zonemta_py.smtp.seven_bit import NotConvertible, to_seven_bit
from zonemta_py.transports.pipelining import SmtpSession, Transaction, TransactionResult

CONVERTED_MAX = 64 << 20  # bytes; a larger message would take several times that in memory

log = logging.getLogger(__name__)


class MessageForm:
    """A message as it is sent. ``body`` None: that of the queue, which ``context`` reads."""

    def __init__(
        self, request: DeliveryRequest, context: RequestContext, body: bytes | None = None
    ) -> None:
        self.request = request
        self.context = context
        self.body = body

    def read(self) -> bytes | AsyncIterator[bytes]:
        """The body. Raises QueueCorrupt, also while it is read."""
        return self.context.body() if self.body is None else self.body


class MessageForms:
    """The message of a request as it is, and in 7 bits; both signed, each made when it is first needed."""

    def __init__(
        self,
        request: DeliveryRequest,
        context: RequestContext,
        signer: Signer,
        conversions: asyncio.Semaphore,
    ) -> None:
        """``conversions``: as many at the same time; each takes several times the message in memory."""
        self._original = MessageForm(request, context)
        self._signer = signer
        self._conversions = conversions
        self._forms: dict[bool, MessageForm | None] = {}
        if not signer.signs:
            self._forms[False] = self._original

    def converts(self, session: SmtpSession) -> bool:
        """Whether the peer lacks 8BITMIME and can get the message in 7 bits."""
        request = self._original.request
        if session.offers("8bitmime") or (request.eight_bit is False and request.header.isascii()):
            return False
        return not _needs_smtputf8(request) and request.size_bytes <= CONVERTED_MAX

    async def get(self, *, seven_bit: bool) -> MessageForm:
        """A form; the message as it is when it cannot be converted."""
        if seven_bit not in self._forms:
            form: MessageForm | None = self._original
            if seven_bit:
                async with self._conversions:
                    form = await _converted(self._original)
            self._forms[seven_bit] = await _signed(form, self._signer) if form is not None else None
        return self._forms[seven_bit] or await self.get(seven_bit=False)


async def _converted(form: MessageForm) -> MessageForm | None:
    """The message in 7 bits; None when that is not possible."""
    request = form.request
    try:
        whole = form.read()
        if not isinstance(whole, bytes):
            whole = b"".join([chunk async for chunk in whole])
        header, body = await asyncio.to_thread(to_seven_bit, request.header, whole)
    except QueueCorrupt:
        return None  # reported when the body is read to be sent
    except NotConvertible as exc:
        log.warning("%s cannot be sent in 7 bits: %s", request.message, exc)
        return None
    size_bytes = len(header) + 2 + len(body)
    changed = replace(
        request, header=header, size_bytes=size_bytes, eight_bit=False, smtputf8=False, body_hash=b""
    )
    return MessageForm(changed, form.context, body)


async def _signed(form: MessageForm, signer: Signer) -> MessageForm:
    """The message with the DKIM signatures of its author's domain in front of its header."""
    if not signer.signs:
        return form
    request = form.request
    name = request.message if form.body is None else f"{request.message} in 7 bits"
    try:
        fields = await signer.signatures(name, request.header, partial(_body_hash, form), request.tenant)
    except QueueCorrupt:
        return form  # reported when the body is read to be sent
    if not fields:
        return form
    size_bytes = request.size_bytes + len(fields)
    changed = replace(request, header=fields + request.header, size_bytes=size_bytes)
    return MessageForm(changed, form.context, form.body)


async def _body_hash(form: MessageForm) -> bytes:
    """The DKIM body hash from intake, or computed now. Raises QueueCorrupt."""
    if form.request.body_hash:
        return form.request.body_hash
    body, body_hash = form.read(), BodyHash()
    if isinstance(body, bytes):
        body_hash.feed(body)
    else:
        async for chunk in body:
            body_hash.feed(chunk)
    return body_hash.digest()


def _needs_smtputf8(request: DeliveryRequest) -> bool:
    return (
        (request.smtputf8 and not request.header.isascii())
        or needs_smtputf8(request.sender)
        or any(map(needs_smtputf8, request.recipients))
    )


async def transact(
    session: SmtpSession, request: DeliveryRequest, form: MessageForm
) -> TransactionResult:
    """Send ``form`` to the recipients of ``request``. Raises SessionLost, and what its context raises except QueueCorrupt."""
    recipients = request.recipients
    smtputf8 = _needs_smtputf8(request)
    eight_bit = request.eight_bit or not request.header.isascii()
    refusal = _refusal(session, request.size_bytes, eight_bit, smtputf8)
    if refusal is not None:
        return TransactionResult([(Phase.MAIL, refusal)] * len(recipients))
    if session.recipients_max is not None:
        recipients = recipients[: session.recipients_max]
    dsn = request.dsn if request.dsn is not None and session.offers("dsn") else None
    try:
        transaction = Transaction(
            request.sender, recipients, request.header, form.read(), request.size_bytes,
            eight_bit, smtputf8, dsn,
        )  # fmt: skip
        return await session.transact(transaction, form.context.started)
    except QueueCorrupt as exc:
        log.critical("%s is not delivered: %s", request.message, exc)
        reply = Reply(0, "4.3.0", "the stored message is damaged; see the log of the relay")
        return TransactionResult([(Phase.DATA, reply)] * len(recipients))


def refused(session: SmtpSession, request: DeliveryRequest, result: TransactionResult) -> frozenset[str]:
    """The extensions whose parameters the peer refused with every recipient; empty if it refused no parameter."""
    sent = [each for each in PARAMETERS if _is_sent(each, request) and session.offers(each)]
    found: frozenset[str] = frozenset()
    for answer in result.answers:
        extensions = (
            refused_extensions(answer[1], sent) if answer and answer[0] in _NAMES_ADDRESS else None
        )
        if not extensions:
            return frozenset()
        found |= extensions if answer and answer[0] is Phase.MAIL else extensions & {"dsn"}
    return found


_NAMES_ADDRESS = (Phase.MAIL, Phase.RCPT)


def _is_sent(extension: str, request: DeliveryRequest) -> bool:
    """Whether MAIL or RCPT has parameters of ``extension`` if the peer offers it."""
    if extension == "dsn":
        return request.dsn is not None
    if extension == "smtputf8":
        return _needs_smtputf8(request)
    return extension == "size" or request.eight_bit or not request.header.isascii()


def _refusal(session: SmtpSession, size_bytes: int, eight_bit: bool, smtputf8: bool) -> Reply | None:
    """Why the peer cannot accept the message, known from its extensions; None when it can."""
    if session.size_max and size_bytes > session.size_max:
        return Reply(
            0, "5.3.4", f"the message has {size_bytes} bytes, the peer takes {session.size_max}"
        )
    if smtputf8 and not session.offers("smtputf8"):
        if "smtputf8" in session.withdrawn:
            return Reply(
                0, "4.6.7", "an address or header needs SMTPUTF8, which the peer offers and refuses"
            )
        return Reply(0, "5.6.7", "an address or header needs SMTPUTF8, which the peer does not offer")
    if eight_bit and not session.offers("8bitmime") and not smtputf8:
        if "8bitmime" in session.withdrawn:
            return Reply(
                0, "4.6.3", "the message has 8-bit content, which the peer offers to take and refuses"
            )
        return Reply(0, "5.6.3", "the message has 8-bit content, which the peer does not take")
    return None
