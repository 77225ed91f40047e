"""May this be sent at all? Asked of each lease, before anything else is decided about it.

What forbids it, and what becomes of the lease:

- an operator has suspended the tenant, the user, or a part of the mail: those recipients are held;
- the time that its sender allowed is over: it lapses;
- its sender wants it later (an operator or a repair has made it ready before): it is deferred until then.

A new reason belongs into ``before_attempt``, or into ``HeldMail`` if an operator ends it. All callers ask here: the workers of a
zone, for mail to be sent, mail of a destination that fails, and mail that waits for a limit; and programs that dequeue:

    refusal = check.refusal(lease)
    if refusal is not None:
        await refusal  # the lease has ended
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from zonemta_py.config.zones import Zone
from zonemta_py.core.model import Attempt, OutcomeKind
from zonemta_py.delivery.outcome import LAPSED_STATUS
from zonemta_py.delivery.report_composer import DeliveryContext
from zonemta_py.delivery.reports import settle_effects
from zonemta_py.queue.format.records import EnvelopeRecord
from zonemta_py.queue.messages import Lease
from zonemta_py.queue.outcome import Outcome
from zonemta_py.queue.ready.streams import QueuedRecipient
from zonemta_py.smtp.reply_class import ReplyClass


def _lapse(recipient: QueuedRecipient) -> Attempt:
    """The end of a recipient whose time is over."""
    reply = recipient.record.text
    text = "not delivered within the time that its sender allowed" + (
        f"; last: {reply}" if reply else ""
    )
    return Attempt("", 0, LAPSED_STATUS, text, reply_class=ReplyClass.EXPIRED)


def before_attempt(
    meta: EnvelopeRecord, recipients: Sequence[QueuedRecipient], now_ms: int
) -> list[Outcome]:
    """The outcomes of recipients to which nothing may be sent now; empty: an attempt may be made."""
    options = meta.options
    if 0 < options.expires_ms <= now_ms:
        return [Outcome(each, OutcomeKind.LAPSED, _lapse(each), attempted=False) for each in recipients]
    if options.not_before_ms > now_ms:  # it was released by an operator, or restored by a repair
        early = Attempt("", 0, "4.3.0", "its sender asked for a later time")
        return [
            Outcome(each, OutcomeKind.DEFERRED, early, options.not_before_ms, attempted=False)
            for each in recipients
        ]
    return []


def no_provider(destination: str) -> str:
    """The provider of mail whose peer is not known."""
    return ""


class SendCheck:
    """Decides for leases of the queue of ``context``.

    ``settings_of``: those of a destination. ``provider_of``: the provider to which its mail goes, empty while it is not known.
    """

    def __init__(
        self,
        context: DeliveryContext,
        settings_of: Callable[[str], Zone],
        provider_of: Callable[[str], str] = no_provider,
    ) -> None:
        self._context = context
        self._settings_of = settings_of
        self._provider_of = provider_of

    def refusal(self, lease: Lease) -> Coroutine[Any, Any, None] | None:
        """The end of ``lease``, if nothing of it may be sent now; None: it may be sent. The coroutine raises QueueUnavailable."""
        context, queue = self._context, self._context.queue
        if queue.suspended and context.held_mail.must_hold(lease, self._provider_of(lease.destination)):
            return self._hold(lease)
        meta = lease.active.meta
        if not meta.options.expires_ms and not meta.options.not_before_ms:
            return None  # without asking for the time
        outcomes = before_attempt(meta, lease.recipients, queue.now())
        return self._settle(lease, outcomes) if outcomes else None

    async def _hold(self, lease: Lease) -> None:
        if not await self._context.held_mail.hold(lease, self._provider_of(lease.destination)):
            self._context.queue.release(lease)  # resumed a moment ago

    async def _settle(self, lease: Lease, outcomes: Sequence[Outcome]) -> None:
        context, settings = self._context, self._settings_of(lease.destination)
        effects = await settle_effects(context, settings, lease.active, outcomes)
        await context.queue.settle(lease, outcomes, effects)
