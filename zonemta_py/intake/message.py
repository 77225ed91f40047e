r"""Receipt of one message: its data, then its key, the scanner's verdict, the limits, and the queue.

Steps::

    feed … feed ─▶ finish ─▶ key ─▶ scan ─▶ limits ─▶ queue ─▶ result
       └─────────── a refusal at any step ───────────────▶ abort

``MessageData`` takes the data: it checks lines, splits header and body, hashes, scans and writes. ``MessageReceiver`` does the
steps after the end of the data. Each step starts when the future of the step before is done.

Invariants:

- Memory does not depend on the size of a message: the body goes to its writers block by block.
- After the first defect ``refusal`` is set, and the remaining data are read and discarded. The reply to the final dot names the
  defect: after an earlier reply the data of the client would be taken for commands.
- The writers of bodies and the submission key end exactly once: by ``abort``, or by ``_hand_over`` to the queue (``_ended``).
- A message that was handed over is stored even when the client disconnects; a repetition finds it under its key.
- There is a ``result`` only when every message that policies made is on disk.
- A defect of a step refuses this message only (``_call``); the future of ``finish`` is done all the same. After ``abort`` by a
  client that disconnected no step continues.

Callers: ``session.Session`` between DATA and its reply, and ``inject.Injector`` for mail by HTTP and of programs.

Example::

    receiver = MessageReceiver(queue, rules, envelope, claim)
    receiver.feed(b"Subject: Hello\r\n\r\nText\r\n")
    receiver.finish().add_done_callback(lambda _: send(receiver.refusal or receiver.result.reply()))

Source: RFC 5321 sections 4.1.1.4 (DATA) and 6.1 (responsibility after the 250).
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from zonemta_py.core import clock, faults
from zonemta_py.core.codec import replace
from zonemta_py.core.errors import LocalError, NotAccepted, QueueUnavailable
from zonemta_py.events.schema import Repeated
from zonemta_py.intake.policies import EnvelopeWriters, apply_policies
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.scan import ACCEPT, MessageScanner, Scan, ScannedEnvelope, ScanVerdict
from zonemta_py.intake.stamping import (
    MessageContent,
    MessageEnvelope,
    MessageRules,
    key_in_header,
    key_source,
    stamp,
)
from zonemta_py.intake.submission_key import SubmissionKeyClaim
from zonemta_py.queue.accept import NewMessage
from zonemta_py.queue.commit import CommitFuture
from zonemta_py.queue.format.keys import created_ms
from zonemta_py.queue.messages import MessageWriter
from zonemta_py.queue.submitters.limits import Use, client_of
from zonemta_py.smtp.authors import author_domain
from zonemta_py.smtp.content_digest import ContentDigest
from zonemta_py.smtp.dkim import BodyHash, signing_domain
from zonemta_py.smtp.headers import HeaderSplitter, HeaderTooLarge, names_in, scan
from zonemta_py.smtp.reply import printable
from zonemta_py.smtp.transparency import LineCheck, LineNormaliser

log = logging.getLogger(__name__)


# ---- The result of a receipt.

UNDER_WAY = "450 4.3.0 This submission is under way, try again later"
UNWRITABLE = "451 4.3.0 The queue cannot be written, try again later"


class AcceptResult(NamedTuple):
    """The messages that were accepted.

    ``stored``: id of the message that was stored; empty for a repetition without new recipients.
    ``first``: id of the message accepted first under the submission key; empty without a repetition.
    ``recipients``: how many the stored message has. ``all``: ids of the messages that policies made of it.
    """

    stored: str
    first: str
    recipients: int
    all: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id to report to the client."""
        return self.first or self.stored

    def reply(self) -> str:
        """The reply to the final dot."""
        reply = f"250 2.0.0 Ok: queued as {self.id}"
        if self.first:
            age_ms = max(0, clock.now_ms() - created_ms(self.first))
            reply += f" duplicate, accepted {age_ms / 1000:.3f} s ago"
            if self.stored:
                reply += f", {self.recipients} new recipients as {self.stored}"
        return reply


# ---- The steps after the data.

DEFECT = "451 4.3.0 Internal error"


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
        """True if the size is so far over the limit that the remaining data should not be read."""
        return self._data.over_hard_limit

    def feed(self, data: bytes) -> CommitFuture | None:
        """Take the next bytes of the message; the future, if any, must be done before the next call."""
        wait_for = self._data.feed(data)
        if self._data.refusal and not self._ended:
            self.abort()
        return wait_for

    def refuse(self, refusal: str) -> None:
        """Refuse the message by an SMTP reply, unless it is refused already; more of its data may follow."""
        if not self._data.refusal:
            self._data.refusal = refusal
            self.abort()

    # ---- the end of the data

    def finish(self) -> CommitFuture:
        """End the data; when the future is done, there is a ``refusal`` or a ``result``."""
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
                self._finished.finish()

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
        """Conclude when the verdict of the scanner is known."""
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
        self._finished.finish()

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
        limits = self._rules.limits
        client = None if limits.empty else client_of(self._envelope.origin)
        if client is None or not limits.of(*client):
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
            self._finished.finish()

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
        """Count a message that is on disk, or cannot be; after the last the client gets its reply."""
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
        if faults.armed:
            faults.reach("reply.unsent")
        self._finished.finish()

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


# ---- The data of one message as they come: checked, split into header and body, hashed, scanned, written.

LINE_MAX = 65_536  # bytes: RFC 5321's limit of 998 is for what we send; many clients exceed it
LOOKALIKE = "554 5.6.0 A line of one dot has a bare LF beside it; only CRLF, dot and CRLF end a message"
HARD_LIMIT_FACTOR = 2  # of the size limit, after which a client is disconnected


class MessageData:
    """Takes the data of a message.

    ``is_keyed``: it has a submission key; else ``key`` is the one in its header, or empty, once that is complete.
    ``refusal``: an SMTP reply, at the first defect. ``writer``: of the body; ``writers``: of the bodies under policies,
    once the header is complete. ``scan``: from then on, if the message is scanned.
    """

    def __init__(
        self,
        queue: QueueClient,
        rules: MessageRules,
        envelope: MessageEnvelope,
        is_keyed: bool,
        scanner: MessageScanner | None,
    ) -> None:
        self._queue = queue
        self._rules = rules
        self._envelope = envelope
        self._is_keyed = is_keyed
        self._scanner = scanner
        self._splitter = HeaderSplitter()
        self._check = LineCheck(LINE_MAX)
        self._normaliser: LineNormaliser | None = (
            None  # from the first bare LF, where the listener allows those
        )
        self._last = b""
        self._hash: BodyHash | None = None
        self._digest: ContentDigest | None = None  # of a message with a key
        self.key = ""
        self.writer = queue.open_message()
        self.writers: EnvelopeWriters | None = None
        self.scan: Scan | None = None
        self.size_bytes = 0
        self.refusal = ""

    @property
    def over_hard_limit(self) -> bool:
        """True if the size is so far over the limit that the remaining data should not be read."""
        return self.size_bytes > HARD_LIMIT_FACTOR * self._rules.max_size

    def body_writers(self) -> list[MessageWriter]:
        return [each.writer for each in self.writers.all] if self.writers else [self.writer]

    def feed(self, data: bytes) -> CommitFuture | None:
        """Take the next bytes; the future, if any, must be done before the next call."""
        self.size_bytes += len(data)
        if self.refusal:
            return None
        wait_for = None
        if self.size_bytes > self._rules.max_size:
            self.refusal = f"552 5.3.4 Message size exceeds the limit of {self._rules.max_size} bytes"
        else:
            self._check.feed(data)
            if self._rules.normalise_lines:
                last, self._last = self._last, data[-1:]
                if self._check.bare:
                    data = self._normalised(data, after_cr=last == b"\r")
            self._check_lines()
            if not self.refusal:
                wait_for = self._write_body(self._splitter.feed, data)
        return wait_for

    def _normalised(self, data: bytes, *, after_cr: bool = False, final: bool = False) -> bytes:
        """``data`` with CRLF for bare LF, in a message that has some."""
        if self._normaliser is None:
            self._normaliser = LineNormaliser(after_cr=after_cr)
        data = self._normaliser.feed(data, final=final)
        if self._normaliser.lookalike:
            self.refusal = LOOKALIKE
        return data

    def _check_lines(self) -> None:
        check = self._check
        if check.bare and (check.bare_cr or not self._rules.normalise_lines):
            self.refusal = "554 5.6.0 Bare CR or LF is not allowed in a message"
        elif check.nul:
            self.refusal = "554 5.6.0 NUL is not allowed in a message"
        elif check.long:
            self.refusal = f"554 5.6.0 A line is longer than {LINE_MAX} bytes"

    def _write_body(self, split: Callable[..., bytes], *data: bytes) -> CommitFuture | None:
        """Write the body that ``split`` returns; an exception becomes the refusal."""
        try:
            in_body = self._splitter.done
            body = split(*data)
            if not in_body and self._splitter.done:
                self._on_header_end()
            if not body:
                return None
            if self._hash is not None:
                self._hash.feed(body)
            if self._digest is not None:
                self._digest.feed(body)
            scanned = self.scan.feed(body) if self.scan is not None else None
            written = (self.writers or self.writer).write(body)
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
        """Decide what depends on the header: key, hashes of the body, envelopes. Raises NotAccepted."""
        rules, splitter, origin = self._rules, self._splitter, self._envelope.origin
        self.key = key_in_header(splitter.header, splitter.fields, rules.key_headers)
        if self._is_keyed or self.key:
            self._digest = ContentDigest(self._envelope.sender, splitter.header, splitter.fields)
        if rules.dkim_domains:
            author = author_domain(splitter.header, splitter.fields)
            if signing_domain(author, rules.dkim_domains):
                self._hash = BodyHash()
        if splitter.behind:
            self._check_behind(splitter.behind)
        headers = [(splitter.header, splitter.fields)]
        if rules.policies:
            envelopes = apply_policies(rules.policies, self._envelope, splitter.header)
            self.writers = EnvelopeWriters(self._queue, envelopes, self.writer)
            headers = [(each.header, scan(each.header)[0]) for each in envelopes]
        for header, fields in headers:
            verified = self._queue.verified
            rules.senders.check_header(origin.tenant, origin.submitter, header, fields, verified)
        if self._scanner is not None and self._scanner.is_on:
            self._begin_scan(self._scanner)

    def _check_behind(self, behind: bytes) -> None:
        """Raises NotAccepted when a line that is not a field would show recipients fields that they must not get."""
        shown = names_in(behind) & self._rules.removed_fields
        if shown:
            line = behind.partition(b"\r\n")[0][:40].decode("ascii", "backslashreplace")
            name = min(shown).decode("ascii", "replace")
            raise NotAccepted(
                f"550 5.6.0 The header has the line '{printable(line)}', not a field: {name} behind it would be shown"
            )

    def _begin_scan(self, scanner: MessageScanner) -> None:
        envelope, header = self._envelope, self._splitter.header
        recipients = tuple(rcpt.address for rcpt in envelope.recipients)
        self.scan = scanner.begin(
            ScannedEnvelope(
                self.writer.id, envelope.sender, recipients, envelope.origin, self._rules.hostname
            )
        )
        if self.scan is not None:
            self.scan.feed(header + b"\r\n")

    def finish(self) -> None:
        """Check and write what was held back: the data have ended."""
        if not self.refusal:
            self._check.finish()
            self._check_lines()
        if not self.refusal and self._normaliser is not None:
            self._write_body(self._splitter.feed, self._normalised(b"", final=True))
        if not self.refusal:
            self._write_body(self._splitter.finish)

    def content_digest(self) -> str:
        """The digest (hex) of a message with a submission key. Call it once."""
        assert self._digest is not None
        return self._digest.digest()

    def content(self, verdict: ScanVerdict) -> MessageContent:
        """The content of the data, with the verdict of the scanner."""
        splitter, body_hash = self._splitter, self._hash.digest() if self._hash is not None else b""
        return MessageContent(
            splitter.header, splitter.fields, self._check.eight_bit, body_hash, verdict
        )


def _both(first: CommitFuture, second: CommitFuture) -> CommitFuture:
    """A future that is done when both are."""
    done = CommitFuture()
    first.add_done_callback(lambda _: second.add_done_callback(lambda _: done.finish()))
    return done
