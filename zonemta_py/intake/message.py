"""Receiving one message: its data, then its key, the scanner's verdict, the limits, and the queue."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from zonemta_py.core import clock, faults
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import NotAccepted, QueueUnavailable
from zonemta_py.events.schema import Repeated
from zonemta_py.intake.accept_result import UNDER_WAY, UNWRITABLE, AcceptResult
from zonemta_py.intake.message_data import MessageData
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.scan import ACCEPT, MessageScanner
from zonemta_py.intake.stamping import (
    MessageEnvelope,
    MessageRules,
    key_source,
    stamp,
)
from zonemta_py.intake.submission_key import SubmissionKeyClaim
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.queue.chunks import MessageWriter
from zonemta_py.queue.intake_limits import Use, client_of

DEFECT = "451 4.3.0 Internal error"

log = logging.getLogger(__name__)


class MessageReceiver:
    """Receives the data of one message and hands it to the queue.

    ``claim``: its submission key, acquired when the client named one at MAIL. In the end there is a
    ``refusal``, an SMTP reply, or a ``result``.
    """

    def __init__(
        self,
        queue: QueueClient,
        rules: MessageRules,
        envelope: MessageEnvelope,
        claim: SubmissionKeyClaim,
        scanner: MessageScanner | None = None,
    ) -> None:
        self._queue = queue
        self._rules = rules
        self._envelope = envelope
        self._claim = claim
        self._new = envelope.recipients
        self._data = MessageData(queue, rules, envelope, claim.acquired, scanner)
        self._stored: tuple[str, ...] = ()
        self._verdict = ACCEPT
        self._unwritten = 0  # messages handed to the queue and not yet on disk
        self._failure: QueueUnavailable | None = None
        self._ended = False  # aborted, or handed to the queue
        self._finished = CommitFuture()
        self.result: AcceptResult | None = None

    @property
    def refusal(self) -> str:
        """An SMTP reply, or empty."""
        return self._data.refusal

    @property
    def over_hard_limit(self) -> bool:
        """Whether the size is so far over the limit that the remaining data should not be read."""
        return self._data.over_hard_limit

    def feed(self, data: bytes) -> CommitFuture | None:
        """Take the next bytes of the message; the future, if any, must be done before the next call."""
        wait_for = self._data.feed(data)
        if self._data.refusal and not self._ended:
            self.abort()
        return wait_for

    def refuse(self, refusal: str) -> None:
        """Refuse the message by an SMTP reply, unless it is refused already; its data may go on."""
        if not self._data.refusal:
            self._data.refusal = refusal
            self.abort()

    # ---- the end of the data

    def finish(self) -> CommitFuture:
        """The data have ended; when the future is done, there is a ``refusal`` or a ``result``."""
        self._call(self._finish)
        return self._finished

    def _call(self, step: Callable[..., None], *arguments: Any) -> None:
        """Call a step after the end of the data; a defect in it refuses this message, and no callback is lost."""
        try:
            step(*arguments)
        except Exception:
            log.exception("a message from %s failed", self._envelope.origin.client_ip)
            self._data.refusal = DEFECT
            self.abort()
            if not self._finished.done:
                self._finished.set_result()

    def _finish(self) -> None:
        self._data.finish()
        if self.refusal or not (self._data.key or self._claim.acquired):
            self._await_scan()
        else:
            self._look_up(self._data.key)

    def _look_up(self, key: str) -> None:
        """Ask which recipients have this message under its key; ``key``: of its header."""
        claim, content = self._claim, self._data.content_digest()
        addresses = tuple(rcpt.address for rcpt in self._envelope.recipients)
        if claim.acquired:
            lookup = claim.compare(content, addresses)
        else:
            refuses_other = key_source(key) in self._rules.refused_keys
            lookup = claim.acquire(key, content, addresses, refuses_other=refuses_other)
        lookup.add_done_callback(lambda failure: self._call(self._on_key, failure, lookup.busy))

    def _on_key(self, failure: QueueUnavailable | None, busy: bool) -> None:
        if self._ended:
            return  # the client has disconnected
        if failure is not None:
            self._data.refusal = UNWRITABLE
        elif busy:
            self._data.refusal = UNDER_WAY
        elif self._claim.refusal:
            self._data.refusal = self._claim.refusal
        else:
            self._new = self._claim.new_recipients(self._envelope.recipients)
        self._await_scan()

    def _await_scan(self) -> None:
        """Go on when it is known what the scanner says."""
        scan = self._data.scan
        if scan is None or self.refusal or not self._new:
            self._conclude()
            return

        def scanned(_: QueueUnavailable | None) -> None:
            if self._ended:
                return  # the client has disconnected
            self._verdict = scan.verdict
            self._data.refusal = scan.verdict.refusal
            self._conclude()

        scan.finish().add_done_callback(partial(self._call, scanned))

    def _conclude(self) -> None:
        """Hand the message to the queue, unless it is refused or repeats another."""
        messages: list[tuple[MessageWriter, NewMessage]] = []
        if not self.refusal and self._new:
            try:
                messages = self._compose()
            except NotAccepted as exc:
                self._data.refusal = str(exc)
        if messages:
            self._charge(messages)
            return
        self.abort()
        if not self.refusal:
            self._record_repeated()
            self.result = AcceptResult("", self._claim.first, 0)
        self._finished.set_result()

    def _compose(self) -> list[tuple[MessageWriter, NewMessage]]:
        """The messages to store; empty when every recipient has one already. Raises NotAccepted."""
        data, envelope = self._data, self._envelope
        content = data.content(self._verdict)
        if data.writers is not None:
            return data.writers.compose(self._rules, envelope, content, self._claim, self._new)
        if self._new is not envelope.recipients:
            envelope = replace(envelope, recipients=self._new)
        key = self._claim.use_for(data.writer.id, self._new)
        return [(data.writer, stamp(self._rules, envelope, content, data.writer.id, key))]

    def _charge(self, messages: list[tuple[MessageWriter, NewMessage]]) -> None:
        """Hand ``messages`` to the queue unless they exceed a limit."""
        client = client_of(self._envelope.origin)
        if self._rules.limits.empty or not self._rules.limits.of(*client):
            self._hand_over(messages)
            return
        recipients = sum(len(message.recipients) for _, message in messages)
        charge = self._queue.limits.charge(client, Use(0, 1, recipients, self._data.size_bytes))

        def charged(failure: QueueUnavailable | None) -> None:
            self._data.refusal = UNWRITABLE if failure is not None else charge.refusal
            if self._ended:
                return  # the client has disconnected
            if not self.refusal:
                self._hand_over(messages)
                return
            self.abort()
            self._finished.set_result()

        charge.add_done_callback(partial(self._call, charged))

    def _hand_over(self, messages: list[tuple[MessageWriter, NewMessage]]) -> None:
        """Hand ``messages`` to the queue, which stores them even when the client disconnects."""
        self._unwritten = len(messages)
        self._stored = tuple(writer.id for writer, _ in messages)
        futures = [self._queue.accept(writer, message) for writer, message in messages]
        self._ended = True
        self._claim.hand_over()
        used = {writer.id for writer, _ in messages}
        for writer in self._data.body_writers():
            if writer.id not in used:
                self._queue.abort(writer)
        for future in futures:
            future.add_done_callback(self._on_stored)

    def _on_stored(self, failure: QueueUnavailable | None) -> None:
        """A message is on disk, or cannot be; after the last the client gets its reply."""
        self._unwritten -= 1
        self._failure = self._failure or failure
        if self._unwritten:
            return
        if self._failure is not None:
            self._data.refusal = UNWRITABLE
        else:
            if self._new is not self._envelope.recipients:
                self._record_repeated()
            self.result = AcceptResult(
                self._data.writer.id, self._claim.first, len(self._new), self._stored
            )
        faults.reach("reply.unsent")
        self._finished.set_result()

    def _record_repeated(self) -> None:
        """An event for each message that recipients have under the key."""
        origin, now_ms = self._envelope.origin, clock.now_ms()
        for message, addresses in self._claim.repeated().items():
            self._queue.record(
                Repeated(
                    time_ms=now_ms, message=message, recipients=len(addresses), listener=origin.listener,
                    client_ip=origin.client_ip, user=origin.user, tenant=origin.tenant, addresses=tuple(addresses),
                )
            )  # fmt: skip

    def abort(self) -> None:
        """Discard what was received; does nothing after the end."""
        self._claim.release()
        if self._data.scan is not None:
            self._data.scan.abort()
        if not self._ended:
            self._ended = True
            for writer in self._data.body_writers():
                self._queue.abort(writer)
