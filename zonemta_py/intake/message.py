"""Receiving one message: checked, split into header and body, stamped, routed, accepted.

Memory stays the same for any size. After the first defect the remaining data are read and discarded,
and the reply to the final dot names it: after an earlier reply the client's data would be taken for
commands.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from zonemta_py.core import clock, faults
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import LocalError, NotAccepted, QueueUnavailable
from zonemta_py.events.schema import Repeated
from zonemta_py.intake.accept_result import UNDER_WAY, UNWRITABLE, AcceptResult
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.rewriting import EnvelopeWriters, apply_policies
from zonemta_py.intake.scan import ACCEPT, MessageScanner, Scan, ScannedEnvelope
from zonemta_py.intake.stamping import (
    MessageContent,
    MessageEnvelope,
    MessageRules,
    key_in_header,
    stamp,
)
from zonemta_py.intake.submission_key import SubmissionKeyClaim
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.queue.chunks import MessageWriter
from zonemta_py.queue.intake_limits import Use, client_of
from zonemta_py.smtp.dkim import BodyHash, author_domain, signing_domain
from zonemta_py.smtp.headers import HeaderSplitter, HeaderTooLarge, scan
from zonemta_py.smtp.transparency import LineCheck

LINE_MAX = 65_536  # bytes: RFC 5321's limit of 998 is for what we send; many clients exceed it
HARD_LIMIT_FACTOR = 2  # of the size limit, after which a client is disconnected
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
        self._new = claim.new_recipients(envelope.recipients)
        self._writer = queue.open_message()
        self._splitter = HeaderSplitter()
        self._check = LineCheck(LINE_MAX)
        self._hash: BodyHash | None = None
        self._size = 0
        self._scanner = scanner
        self._scan: Scan | None = None  # from the end of the header, if the message is scanned
        self._writers: EnvelopeWriters | None = None  # under policies, once the header is complete
        self._stored: tuple[str, ...] = ()
        self._verdict = ACCEPT
        self._unwritten = 0  # messages handed to the queue and not yet on disk
        self._failure: QueueUnavailable | None = None
        self._ended = False  # aborted, or handed to the queue
        self._finished = CommitFuture()
        self.refusal = ""
        self.result: AcceptResult | None = None

    @property
    def over_hard_limit(self) -> bool:
        """Whether the size is so far over the limit that the remaining data should not be read."""
        return self._size > HARD_LIMIT_FACTOR * self._rules.max_size

    # ---- data

    def feed(self, data: bytes) -> CommitFuture | None:
        """Take the next bytes of the message; the future, if any, must be done before the next call."""
        self._size += len(data)
        if self.refusal:
            return None
        wait_for = None
        if self._size > self._rules.max_size:
            self.refusal = f"552 5.3.4 Message size exceeds the limit of {self._rules.max_size} bytes"
        elif self._new:
            self._check.feed(data)
            self._check_lines()
            if not self.refusal:
                wait_for = self._write_body(self._splitter.feed, data)
        if self.refusal:
            self.abort()
        return wait_for

    def _check_lines(self) -> None:
        check = self._check
        if check.bare:
            self.refusal = "554 5.6.0 Bare CR or LF is not allowed in a message"
        elif check.nul:
            self.refusal = "554 5.6.0 NUL is not allowed in a message"
        elif check.long:
            self.refusal = f"554 5.6.0 A line is longer than {LINE_MAX} octets"

    def _write_body(self, split: Callable[..., bytes], *data: bytes) -> CommitFuture | None:
        """Write the body that ``split`` returns; an exception becomes the refusal."""
        try:
            in_body = self._splitter.done
            body = split(*data)
            if not in_body and self._splitter.done and self._new:
                self._on_header_end()
            if not body:
                return None
            if self._hash is not None:
                self._hash.feed(body)
            scanned = self._scan.feed(body) if self._scan is not None else None
            written = (self._writers or self._writer).write(body)
            return _both(written, scanned) if written and scanned else written or scanned
        except NotAccepted as exc:
            self.refusal = str(exc)
        except HeaderTooLarge as exc:
            self.refusal = f"552 5.3.4 Refused: {exc}"
        except QueueUnavailable:
            self.refusal = UNWRITABLE
        except LocalError as exc:
            self.refusal = f"552 5.3.4 {exc}"
        return None

    def _on_header_end(self) -> None:
        """Decide what depends on the header: the body's hash and the envelopes. Raises NotAccepted."""
        rules, splitter, origin = self._rules, self._splitter, self._envelope.origin
        if rules.dkim_domains:
            author = author_domain(splitter.header, splitter.fields)
            if signing_domain(author, rules.dkim_domains):
                self._hash = BodyHash()
        headers = [(splitter.header, splitter.fields)]
        if rules.policies:
            envelopes = apply_policies(rules.policies, self._envelope, splitter.header)
            self._writers = EnvelopeWriters(self._queue, envelopes, self._writer)
            headers = [(each.header, scan(each.header)[0]) for each in envelopes]
        for header, fields in headers:
            verified = self._queue.verified
            rules.senders.check_header(origin.tenant, origin.submitter, header, fields, verified)
        if self._scanner is not None and self._scanner.is_on:
            self._begin_scan(self._scanner)

    def _begin_scan(self, scanner: MessageScanner) -> None:
        envelope, header = self._envelope, self._splitter.header
        recipients = tuple(rcpt.address for rcpt in self._new)
        self._scan = scanner.begin(
            ScannedEnvelope(
                self._writer.id, envelope.sender, recipients, envelope.origin, self._rules.hostname
            )
        )
        if self._scan is not None:
            self._scan.feed(header + b"\r\n")

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
            self.refusal = DEFECT
            self.abort()
            if not self._finished.done:
                self._finished.set_result()

    def _finish(self) -> None:
        if not self.refusal:
            self._check.finish()
            self._check_lines()
        if not self.refusal:
            self._write_body(self._splitter.finish)
        key = ""
        if not self.refusal and not self._claim.acquired:
            splitter = self._splitter
            key = key_in_header(splitter.header, splitter.fields, self._rules.key_headers)
        if key:
            lookup = self._claim.acquire(key)
            lookup.add_done_callback(lambda failure: self._call(self._on_key, failure, lookup.busy))
        else:
            self._await_scan()

    def _on_key(self, failure: QueueUnavailable | None, busy: bool) -> None:
        if self._ended:
            return  # the client has disconnected
        if failure is not None:
            self.refusal = UNWRITABLE
        elif busy:
            self.refusal = UNDER_WAY
        else:
            self._new = self._claim.new_recipients(self._envelope.recipients)
        self._await_scan()

    def _await_scan(self) -> None:
        """Go on when it is known what the scanner says."""
        scan = self._scan
        if scan is None or self.refusal or not self._new:
            self._conclude()
            return

        def scanned(_: QueueUnavailable | None) -> None:
            if self._ended:
                return  # the client has disconnected
            self._verdict = scan.verdict
            self.refusal = scan.verdict.refusal
            self._conclude()

        scan.finish().add_done_callback(partial(self._call, scanned))

    def _conclude(self) -> None:
        """Hand the message to the queue, unless it is refused or repeats another."""
        messages: list[tuple[MessageWriter, NewMessage]] = []
        if not self.refusal and self._new:
            try:
                messages = self._compose()
            except NotAccepted as exc:
                self.refusal = str(exc)
        if messages:
            self._charge(messages)
            return
        if self.refusal:
            self.abort()
        else:
            self._repeated()
        self._finished.set_result()

    def _compose(self) -> list[tuple[MessageWriter, NewMessage]]:
        """The messages to store; empty when every recipient has one already. Raises NotAccepted."""
        splitter, envelope = self._splitter, self._envelope
        body_hash = self._hash.digest() if self._hash is not None else b""
        content = MessageContent(
            splitter.header, splitter.fields, self._check.eight_bit, body_hash, self._verdict
        )
        if self._writers is not None:
            return self._writers.compose(self._rules, envelope, content, self._claim, self._new)
        if self._new is not envelope.recipients:
            envelope = replace(envelope, recipients=self._new)
        key = self._claim.record_for(self._writer.id, self._new)
        return [(self._writer, stamp(self._rules, envelope, content, self._writer.id, key))]

    def _charge(self, messages: list[tuple[MessageWriter, NewMessage]]) -> None:
        """Hand ``messages`` to the queue unless they exceed a limit."""
        client = client_of(self._envelope.origin)
        if self._rules.limits.empty or not self._rules.limits.of(*client):
            self._hand_over(messages)
            return
        recipients = sum(len(message.recipients) for _, message in messages)
        charge = self._queue.limits.charge(client, Use(0, 1, recipients, self._size))

        def charged(failure: QueueUnavailable | None) -> None:
            self.refusal = UNWRITABLE if failure is not None else charge.refusal
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
        for writer in self._body_writers():
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
            self.refusal = UNWRITABLE
        else:
            self.result = AcceptResult(self._writer.id, self._claim.first, len(self._new), self._stored)
        faults.reach("reply.unsent")
        self._finished.set_result()

    def _repeated(self) -> None:
        """Every recipient was accepted under this key before: the reply names the first message."""
        envelope, origin, first = self._envelope, self._envelope.origin, self._claim.first
        self.abort()
        self._queue.record(
            Repeated(
                time_ms=clock.now_ms(), message=first, recipients=len(envelope.recipients),
                listener=origin.listener, client_ip=origin.client_ip, user=origin.user,
                tenant=origin.tenant,
            )
        )  # fmt: skip
        self.result = AcceptResult("", first, 0)

    def abort(self) -> None:
        """Discard what was received; does nothing after the end."""
        self._claim.release()
        if self._scan is not None:
            self._scan.abort()
        if not self._ended:
            self._ended = True
            for writer in self._body_writers():
                self._queue.abort(writer)

    def _body_writers(self) -> list[MessageWriter]:
        return [each.writer for each in self._writers.all] if self._writers else [self._writer]


def _both(first: CommitFuture, second: CommitFuture) -> CommitFuture:
    """Done when both are."""
    done = CommitFuture()
    first.add_done_callback(lambda _: second.add_done_callback(lambda _: done.set_result()))
    return done
