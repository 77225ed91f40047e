"""The data of one message as they come: checked, split into header and body, hashed, scanned, written.

Memory stays the same for any size. After the first defect the remaining data are read and discarded,
and the reply to the final dot names it: after an earlier reply the client's data would be taken for
commands.
"""

from collections.abc import Callable

from zonemta_py.core.errors import LocalError, NotAccepted, QueueUnavailable
from zonemta_py.intake.accept_result import UNWRITABLE
from zonemta_py.intake.queue_client import QueueClient
from zonemta_py.intake.rewriting import EnvelopeWriters, apply_policies
from zonemta_py.intake.scan import MessageScanner, Scan, ScannedEnvelope, ScanVerdict
from zonemta_py.intake.stamping import MessageContent, MessageEnvelope, MessageRules, key_in_header
from zonemta_py.queue.batch import CommitFuture
from zonemta_py.queue.chunks import MessageWriter
from zonemta_py.smtp.authors import author_domain
from zonemta_py.smtp.content_digest import ContentDigest
from zonemta_py.smtp.dkim import BodyHash, signing_domain
from zonemta_py.smtp.headers import HeaderSplitter, HeaderTooLarge, names_in, scan
from zonemta_py.smtp.reply import printable
from zonemta_py.smtp.transparency import LineCheck, LineNormaliser

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
        """Whether the size is so far over the limit that the remaining data should not be read."""
        return self.size_bytes > HARD_LIMIT_FACTOR * self._rules.max_size

    def body_writers(self) -> list[MessageWriter]:
        """The writers of all bodies."""
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
        """Raises NotAccepted when a line that is no field would make body of fields that recipients must not get."""
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
        """The data have ended."""
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
        """What the data are, with what the scanner says of them."""
        splitter, body_hash = self._splitter, self._hash.digest() if self._hash is not None else b""
        return MessageContent(
            splitter.header, splitter.fields, self._check.eight_bit, body_hash, verdict
        )


def _both(first: CommitFuture, second: CommitFuture) -> CommitFuture:
    """Done when both are."""
    done = CommitFuture()
    first.add_done_callback(lambda _: second.add_done_callback(lambda _: done.set_result()))
    return done
